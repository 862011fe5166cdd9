#include "run.hpp"

int main(int argc, char** argv) {
    return reference::run(argc, argv);
}
