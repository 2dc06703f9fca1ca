//! Tests of compressed inputs whose decompression would need more memory than the limit.

use std::io::Write;

use super::{check_loaded, check_refused, new_case};

#[test]
fn compressed_data_that_needs_a_huge_window_is_refused() {
    let case = new_case();
    let text = "v\na\n";
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    check_loaded(&case, "t.csv.zst", &zstd, 1);
    // A frame without a content size has a byte for the window size, here 2^41 bytes.
    let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xF8][..], &[1, 0, 0]].concat();
    check_refused(&case, "window.csv.zst", frame, &["could not decompress zstd data"]);
    // A single-segment frame states its content size, here 2^62 bytes.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xE0];
    frame.extend((1_u64 << 62).to_le_bytes());
    frame.extend([1, 0, 0]);
    check_refused(&case, "content.csv.zst", frame, &["could not decompress zstd data"]);
    // An encoder would need ten times as much memory as the dictionary has. So the test encodes
    // with a small dictionary and changes the size in the header.
    let small = {
        let mut options = liblzma::stream::LzmaOptions::new_preset(1).unwrap();
        options.dict_size(1 << 16);
        let mut filters = liblzma::stream::Filters::new();
        filters.lzma2(&options);
        let check = liblzma::stream::Check::None;
        let stream = liblzma::stream::Stream::new_stream_encoder(&filters, check).unwrap();
        let mut writer = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        writer.write_all(text.as_bytes()).unwrap();
        writer.finish().unwrap()
    };
    check_loaded(&case, "t.csv.xz", &small, 1);
    let huge = set_dictionary_size(&small, 39);
    check_refused(&case, "dictionary.csv.xz", huge, &["needs more than 256 MiB of memory"]);
}

/// Returns the xz stream with another dictionary size in the header of its first block.
fn set_dictionary_size(xz: &[u8], bits: u8) -> Vec<u8> {
    let mut xz = xz.to_vec();
    // After the stream header of 12 bytes comes the block header: its size, flags, and of the
    // filter the id, the size of properties and the dictionary size.
    let size = (usize::from(xz[12]) + 1) * 4;
    assert_eq!(xz[14..16], [0x21, 1], "an LZMA2 filter");
    xz[16] = bits;
    let mut crc = flate2::Crc::new();
    crc.update(&xz[12..12 + size - 4]);
    let sum = crc.sum().to_le_bytes();
    xz[12 + size - 4..12 + size].copy_from_slice(&sum);
    xz
}
