// vkattn_json_check KEY...: is stdin one line with one JSON object that has these keys? A key may be a path,
// with array indices from 0: devices.0.name. KEY=TYPE also asks for a type: string, number, boolean, array or
// object.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

using Json = nlohmann::json;

// The value at a path such as devices.0.name. Throws where there is none.
const Json& find(const Json& object, const std::string& path) {
    std::string pointer = "/" + path;
    for (char& c : pointer)
        if (c == '.') c = '/';
    return object.at(Json::json_pointer(pointer));
}

void check_key(const Json& object, const std::string& argument) {
    const std::size_t equals = argument.find('=');
    const Json& value = find(object, argument.substr(0, equals));
    if (equals == argument.npos) return;
    const std::string wanted = argument.substr(equals + 1);
    if (value.type_name() != wanted)
        throw std::runtime_error(argument + ": it is of type " + value.type_name());
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
        const Json object = Json::parse(text);
        if (!object.is_object()) throw std::runtime_error("not an object");
        if (text.find('\n') != text.size() - 1) throw std::runtime_error("not one line");
        for (int i = 1; i < argc; ++i) check_key(object, argv[i]);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "json_check: %s\n", error.what());
        return 1;
    }
}
