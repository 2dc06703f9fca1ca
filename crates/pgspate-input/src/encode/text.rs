//! Writes fields in COPY text format, for rows that are left to the server.

/// Appends one field as COPY text, with escapes for COPY's special characters. `None` is NULL.
pub fn append(field: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(bytes) = field else {
        out.extend_from_slice(b"\\N");
        return;
    };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|b| matches!(b, b'\\' | b'\t' | b'\n' | b'\r')) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(match rest[at] {
            b'\\' => b"\\\\",
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            _ => b"\\r",
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}
