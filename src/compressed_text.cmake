# cmake -DFROM=FILE -DCOMPRESSED=FILE.gz -DTEXT=FILE.inc -P: compresses FROM to the gzip format, and writes the
# compressed bytes as text, separated by commas.
file(ARCHIVE_CREATE OUTPUT "${COMPRESSED}" PATHS "${FROM}" FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
file(READ "${COMPRESSED}" hex HEX)
# The header has the time of day in bytes 4 to 7, which would make every build another one.
string(SUBSTRING "${hex}" 0 8 before)
string(SUBSTRING "${hex}" 16 -1 after)
string(REGEX REPLACE "(..)" "0x\\1," text "${before}00000000${after}")
file(WRITE "${TEXT}" "${text}\n")
