//! Bytes from files, object stores and standard input, decompressed and read ahead.
