// A terminal gets one line on stderr about work that takes longer than two seconds: what is being done, how far it
// is, how long it will still take. Where stderr is no terminal nothing is written, and nothing is started.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vkattn::tools {

// A piece of work, from construction to destruction, on the main thread. Pieces may be parts of others that began
// before them; the line names them all.
class Phase {
  public:
    // total: how much there is to do, in whatever unit; 0 where nobody knows.
    explicit Phase(std::string name, double total = 0);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

    void advance(double by = 1);

  private:
    size_t index_ = 0;
};

// A row of a table on stdout appears at once, and is not mixed with the line on stderr.
void print_row(std::string_view row);
// A warning appears at once, too, as a line on stderr. It is about what keeps nothing from going on.
void print_warning(std::string_view text);

// Creating a plan builds pipelines, which takes long where no cache has them yet.
constexpr const char* compiling_pipelines = "compiling pipelines (first run)";

}  // namespace vkattn::tools
