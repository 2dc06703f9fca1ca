//! Compressed inputs that state, or become, more than memory holds.

use std::io::Write;

use super::{case, refused, taken};

#[test]
fn windows_larger_than_the_limit() {
    let case = case();
    let text = "v\na\n";
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    taken(&case, "t.csv.zst", &zstd, 1);
    // A frame without its size has a byte for its window: 2^41 and a bit.
    let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xF8][..], &[1, 0, 0]].concat();
    refused(&case, "window.csv.zst", frame, &["could not decompress zstd data"]);
    // Of one whose content has 2^62 bytes.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xE0];
    frame.extend((1_u64 << 62).to_le_bytes());
    frame.extend([1, 0, 0]);
    refused(&case, "content.csv.zst", frame, &["could not decompress zstd data"]);
    // An encoder would need ten times the dictionary: only its size in the header is changed.
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
    taken(&case, "t.csv.xz", &small, 1);
    let huge = with_dictionary(&small, 39);
    refused(&case, "dictionary.csv.xz", huge, &["needs more than 256 MiB of memory"]);
}

/// Returns the stream with another dictionary size in the header of its first block.
fn with_dictionary(xz: &[u8], bits: u8) -> Vec<u8> {
    let mut xz = xz.to_vec();
    // Stream header 12; block header: its size, flags, the filter's id, size and property.
    let size = (usize::from(xz[12]) + 1) * 4;
    assert_eq!(xz[14..16], [0x21, 1], "an LZMA2 filter");
    xz[16] = bits;
    let mut crc = flate2::Crc::new();
    crc.update(&xz[12..12 + size - 4]);
    let sum = crc.sum().to_le_bytes();
    xz[12 + size - 4..12 + size].copy_from_slice(&sum);
    xz
}
