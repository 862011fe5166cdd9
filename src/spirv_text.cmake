# cmake -DFROM=SPIRV -DTO=TEXT -P: the words of a module as text, separated by commas.
file(READ "${FROM}" hex HEX)
string(REGEX REPLACE "(..)(..)(..)(..)" "0x\\4\\3\\2\\1," text "${hex}")
file(WRITE "${TO}" "${text}\n")
