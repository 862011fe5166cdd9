// A console of Windows shows UTF-8 and obeys the terminal sequences that progress is drawn with only when asked to.
#pragma once

namespace vkattn::tools {

// Asks for both until the program ends. It does nothing where a terminal needs no asking.
void prepare_console();

}  // namespace vkattn::tools
