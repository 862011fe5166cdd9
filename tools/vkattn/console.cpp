#include "console.hpp"

#ifdef _WIN32
#include <windows.h>

#include <cstdlib>
#endif

namespace vkattn::tools {

#ifdef _WIN32

namespace {

// The console outlives the program, and belongs to others, too.
UINT earlier_code_page = 0;
void restore_code_page() {
    SetConsoleOutputCP(earlier_code_page);
}

}  // namespace

void prepare_console() {
    earlier_code_page = GetConsoleOutputCP();
    if (earlier_code_page != 0 && SetConsoleOutputCP(CP_UTF8) != 0) std::atexit(restore_code_page);
    const HANDLE of_stderr = GetStdHandle(STD_ERROR_HANDLE);
    DWORD mode = 0;
    if (GetConsoleMode(of_stderr, &mode) != 0)
        SetConsoleMode(of_stderr, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
}

#else

void prepare_console() {}

#endif

}  // namespace vkattn::tools
