//! PostgreSQL types as the encoders see them, and the session settings that text input depends on.

/// A type of a column, with everything an encoder must know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgType {
    /// `pg_type.oid`.
    pub oid: u32,
    /// As `format_type` prints it, with its modifier: `numeric(15,2)`.
    pub name: String,
    /// `atttypmod`; -1 where there is none.
    pub typmod: i32,
    /// What it is made of.
    pub kind: TypeKind,
}

/// What a type is made of (`pg_type.typtype` and `typcategory`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeKind {
    /// A type of its own; built-in where its oid is below 10,000.
    Base,
    /// An enum.
    Enum,
    /// A domain over another type. Its `typmod` is the domain's own.
    Domain(Box<PgType>),
    /// A variable-length array of the element type, with its delimiter (`,`; `;` for box).
    Array(Box<PgType>, u8),
    /// A range over the subtype.
    Range(Box<PgType>),
    /// A row type, a multirange or anything else that only the server can read.
    Other,
}

impl PgType {
    /// The type beneath all domains.
    pub fn base(&self) -> &PgType {
        match &self.kind {
            TypeKind::Domain(inner) => inner.base(),
            _ => self,
        }
    }
}

/// What the server's input functions depend on, read from a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// `server_version_num`: 150018 for 15.18.
    pub server_version: u32,
    /// `DateStyle`, for example `ISO, MDY`.
    pub date_style: String,
    /// `TimeZone`.
    pub time_zone: String,
    /// `IntervalStyle`.
    pub interval_style: String,
    /// `server_encoding`.
    pub server_encoding: String,
    /// `client_encoding` of the lanes.
    pub client_encoding: String,
    /// `array_nulls`. Off, as old applications may still have it, NULL in an array is text.
    pub array_nulls: bool,
}

impl Session {
    /// A session of a server of this `server_version_num` on which nothing has been changed, in UTC
    /// and UTF8: for what is encoded without a server.
    pub fn of_version(server_version: u32) -> Session {
        Session {
            server_version,
            date_style: "ISO, MDY".to_owned(),
            time_zone: "UTC".to_owned(),
            interval_style: "postgres".to_owned(),
            server_encoding: "UTF8".to_owned(),
            client_encoding: "UTF8".to_owned(),
            array_nulls: true,
        }
    }
}
