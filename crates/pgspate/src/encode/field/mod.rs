//! Text fields to binary COPY values, one file per family of types.
//!
//! [`FieldEncoder::encode`] takes exactly the spellings for which its bytes are those that the
//! server's input function followed by its binary output would give. It says no to all others,
//! valid or not, and the row goes to the server as text.

use crate::target::{PgType, Session, TypeKind};

/// Encodes the fields of one column.
#[derive(Debug, Clone)]
pub struct FieldEncoder {
    family: Family,
}

#[derive(Debug, Clone)]
enum Family {
    /// The value's bytes are the field's bytes: text, varchar, bpchar, name, json, enums.
    Bytes,
}

impl FieldEncoder {
    /// The encoder for a column's type, or the reason why there is none.
    pub fn new(ty: &PgType, _session: &Session) -> Result<FieldEncoder, String> {
        match (&ty.base().kind, ty.base().oid) {
            (TypeKind::Enum, _) | (TypeKind::Base, 25 | 1042 | 1043 | 19 | 114) => {
                Ok(FieldEncoder { family: Family::Bytes })
            }
            _ => Err(format!("type {} has no exact encoder", ty.name)),
        }
    }

    /// Appends the value's length (int32) and its binary form to `out`. When it returns false the
    /// spelling is left to the server, and what it appended is void: the caller truncates.
    #[inline]
    pub fn encode(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        match self.family {
            Family::Bytes => {
                out.extend_from_slice(&(field.len() as i32).to_be_bytes());
                out.extend_from_slice(field);
                true
            }
        }
    }
}
