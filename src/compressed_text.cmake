# cmake -DFROM=FILE -DCOMPRESSED=FILE.xz -DTEXT=FILE.inc -P: compresses FROM to the xz format, and writes the compressed
# bytes as text, separated by commas. The format is xz because flattened modules repeat themselves over distances that
# gzip does not see: 3.0 MB for 5.1 MB of gzip.
file(ARCHIVE_CREATE OUTPUT "${COMPRESSED}" PATHS "${FROM}" FORMAT raw COMPRESSION XZ COMPRESSION_LEVEL 6)
file(READ "${COMPRESSED}" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," text "${hex}")
file(WRITE "${TEXT}" "${text}\n")
