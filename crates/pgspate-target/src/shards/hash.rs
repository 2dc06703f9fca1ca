//! The hash functions of PostgreSQL's types, by which Citus assigns rows to shards.
//!
//! The input is a value as binary COPY has it. The result is the one of the type's own hash
//! function on the server, such as `hashint8` or `hashtext`.

use pgspate_input::types::{PgType, TypeKind};

/// The hash function of a column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnHash {
    /// `hashint2`, of 2 bytes.
    Int2,
    /// `hashint4`, of 4 bytes, which is also the function of dates.
    Int4,
    /// `hashint8`, of 8 bytes, which is also the function of timestamps.
    Int8,
    /// `hashtext` under a deterministic collation, and `uuid_hash`: of all bytes.
    Bytes,
}

impl ColumnHash {
    /// Returns the hash function of a type. `None` if it is not known here, or if the server may
    /// store another value than COPY sends.
    pub fn of(ty: &PgType) -> Option<ColumnHash> {
        if ty.kind != TypeKind::Base {
            return None;
        }
        match ty.oid {
            21 => Some(ColumnHash::Int2),
            23 | 1082 => Some(ColumnHash::Int4),
            20 => Some(ColumnHash::Int8),
            // The server rounds to the precision of a modifier, and cuts spaces off at a length.
            1114 | 1184 if ty.typmod < 0 => Some(ColumnHash::Int8),
            1043 if ty.typmod < 0 => Some(ColumnHash::Bytes),
            25 | 2950 => Some(ColumnHash::Bytes),
            _ => None,
        }
    }

    /// Returns whether the hash is that of a text, which the server may store in other bytes.
    pub fn is_of_text(ty: &PgType) -> bool {
        matches!(ty.oid, 25 | 1043)
    }

    /// Returns the hash of a value in binary COPY format. `None` if the value has a wrong length.
    pub fn hash(self, value: &[u8]) -> Option<i32> {
        let hash = match self {
            ColumnHash::Int2 => {
                hash_uint32(i32::from(i16::from_be_bytes(value.try_into().ok()?)).cast_unsigned())
            }
            ColumnHash::Int4 => hash_uint32(u32::from_be_bytes(value.try_into().ok()?)),
            ColumnHash::Int8 => hash_int8(i64::from_be_bytes(value.try_into().ok()?)),
            ColumnHash::Bytes => hash_bytes(value),
        };
        Some(hash.cast_signed())
    }
}

/// Hashes 8 bytes so that equal numbers of 2, 4 and 8 bytes have equal hashes, as `hashint8` does.
fn hash_int8(value: i64) -> u32 {
    let (low, high) = (value as u32, (value >> 32) as u32);
    hash_uint32(low ^ if value >= 0 { high } else { !high })
}

/// Returns the start state for a value of `len` bytes.
fn start(len: usize) -> u32 {
    0x9e37_79b9_u32.wrapping_add(len as u32).wrapping_add(3_923_095)
}

fn hash_uint32(value: u32) -> u32 {
    let [mut a, b, c] = [start(4); 3];
    a = a.wrapping_add(value);
    finish(a, b, c)
}

/// Returns the hash of bytes by Bob Jenkins' lookup3, as `hash_any` computes it on machines with
/// little-endian numbers. The lowest byte of the third word stays free in the last round.
fn hash_bytes(bytes: &[u8]) -> u32 {
    let [mut a, mut b, mut c] = [start(bytes.len()); 3];
    let (blocks, rest) = bytes.as_chunks::<12>();
    for block in blocks {
        a = a.wrapping_add(word(&block[..4]));
        b = b.wrapping_add(word(&block[4..8]));
        c = c.wrapping_add(word(&block[8..]));
        mix(&mut a, &mut b, &mut c);
    }
    let part = |from: usize, to: usize| word(&rest[from.min(rest.len())..to.min(rest.len())]);
    a = a.wrapping_add(part(0, 4));
    b = b.wrapping_add(part(4, 8));
    c = c.wrapping_add(part(8, 11) << 8);
    finish(a, b, c)
}

/// Returns up to four bytes as a little-endian number.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    for (rotation, [x, y, z]) in [
        (4, [0, 1, 2]),
        (6, [1, 2, 0]),
        (8, [2, 0, 1]),
        (16, [0, 1, 2]),
        (19, [1, 2, 0]),
        (4, [2, 0, 1]),
    ] {
        let mut words = [*a, *b, *c];
        words[x] = words[x].wrapping_sub(words[z]) ^ words[z].rotate_left(rotation);
        words[z] = words[z].wrapping_add(words[y]);
        [*a, *b, *c] = words;
    }
}

fn finish(a: u32, b: u32, c: u32) -> u32 {
    let mut words = [a, b, c];
    for (rotation, [x, y]) in [
        (14, [2, 1]),
        (11, [0, 2]),
        (25, [1, 0]),
        (16, [2, 1]),
        (4, [0, 2]),
        (14, [1, 0]),
        (24, [2, 1]),
    ] {
        words[x] = (words[x] ^ words[y]).wrapping_sub(words[y].rotate_left(rotation));
    }
    words[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values and their hashes, as PostgreSQL's own functions give them.
    #[test]
    fn hashes_are_those_of_the_server() {
        for (value, hash) in [
            (0_i64, -272_711_505),
            (1, -1_905_060_026),
            (-1, 385_747_274),
            (i64::MAX, -1_524_351_049),
            (i64::MIN, -96_758_253),
            (1 << 32, -1_905_060_026),
            (-4_294_967_297, -1_242_090_879),
        ] {
            assert_eq!(ColumnHash::Int8.hash(&value.to_be_bytes()), Some(hash), "{value}");
        }
        for (value, hash) in
            [(i32::MAX, -96_758_253), (i32::MIN, -1_524_351_049), (42, 1_509_752_520)]
        {
            assert_eq!(ColumnHash::Int4.hash(&value.to_be_bytes()), Some(hash), "{value}");
        }
        for (value, hash) in
            [(-1_i16, 385_747_274), (32_767, 1_289_782_602), (-32_768, 193_646_934)]
        {
            assert_eq!(ColumnHash::Int2.hash(&value.to_be_bytes()), Some(hash), "{value}");
        }
        for (value, hash) in [
            ("", -1_477_818_771),
            ("a", 1_075_015_857),
            ("ab", 1_718_550_461),
            ("abc", -785_388_649),
            ("abcd", -393_934_804),
            ("abcde", -445_659_580),
            ("abcdefgh", -1_960_928_205),
            ("abcdefghi", -92_131_489),
            ("abcdefghijk", -1_483_803_693),
            ("abcdefghijkl", -1_586_087_212),
            ("abcdefghijklm", 405_849_808),
            ("abcdefghijklmnopqrstuvwxyz", 167_831_483),
            ("Zürich", 1_169_491_486),
        ] {
            assert_eq!(ColumnHash::Bytes.hash(value.as_bytes()), Some(hash), "{value}");
        }
        let uuid = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128;
        assert_eq!(ColumnHash::Bytes.hash(&uuid.to_be_bytes()), Some(776_152_245));
    }

    #[test]
    fn values_of_a_wrong_length_have_no_hash() {
        assert_eq!(ColumnHash::Int8.hash(&[0; 4]), None);
        assert_eq!(ColumnHash::Int2.hash(&[]), None);
    }

    #[test]
    fn types_whose_values_the_server_changes_have_no_hash() {
        let ty = |oid, typmod, kind| PgType { oid, name: String::new(), typmod, kind };
        assert_eq!(ColumnHash::of(&ty(1043, -1, TypeKind::Base)), Some(ColumnHash::Bytes));
        assert_eq!(ColumnHash::of(&ty(1043, 14, TypeKind::Base)), None);
        assert_eq!(ColumnHash::of(&ty(1184, 3, TypeKind::Base)), None);
        assert_eq!(ColumnHash::of(&ty(1700, -1, TypeKind::Base)), None);
        let inner = Box::new(ty(23, -1, TypeKind::Base));
        assert_eq!(ColumnHash::of(&ty(20_000, -1, TypeKind::Domain(inner))), None);
    }
}
