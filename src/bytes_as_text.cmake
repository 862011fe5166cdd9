# cmake -DFROM=FILE -DTO=FILE.inc -P: writes the bytes of FROM as text, separated by commas.
file(READ "${FROM}" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," text "${hex}")
file(WRITE "${TO}" "${text}\n")
