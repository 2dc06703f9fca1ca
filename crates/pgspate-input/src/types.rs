//! PostgreSQL types as encoders need them, and the session settings that text input depends on.

/// The type of a column, with everything that an encoder must know about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgType {
    /// `pg_type.oid`.
    pub oid: u32,
    /// Name and modifier as `format_type` prints them: `numeric(15,2)`.
    pub name: String,
    /// `atttypmod`; -1 if the type has no modifier.
    pub typmod: i32,
    /// The kind of the type: base, enum, domain, array or range.
    pub kind: TypeKind,
}

/// The kind of a type (`pg_type.typtype` and `typcategory`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeKind {
    /// A base type. It is built-in if its oid is below 10,000.
    Base,
    /// An enum.
    Enum,
    /// A domain over the inner type. The `typmod` of the outer type is the domain's own.
    Domain(Box<PgType>),
    /// A variable-length array of the element type, and its delimiter: `,`, or `;` for box.
    Array(Box<PgType>, u8),
    /// A range over a subtype.
    Range(Box<PgType>),
    /// A row type, a multirange or any other type that only the server can read.
    Other,
}

impl PgType {
    /// Returns the type beneath all domains.
    pub fn base(&self) -> &PgType {
        match &self.kind {
            TypeKind::Domain(inner) => inner.base(),
            _ => self,
        }
    }

    /// Returns whether the type is hstore, or a domain over it. The oid of an extension's type
    /// differs between databases, and its schema may be any.
    pub fn is_hstore(&self) -> bool {
        let base = self.base();
        base.kind == TypeKind::Base && base.name.rsplit('.').next() == Some("hstore")
    }
}

/// The settings of a session on which the server's input functions depend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSettings {
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
    /// `array_nulls`. If it is off, as some old applications need it, NULL in an array is text.
    pub array_nulls: bool,
}

impl SessionSettings {
    /// Returns PostgreSQL's default settings for a `server_version_num`, with UTC and UTF8. Used to
    /// encode without a server.
    pub fn of_version(server_version: u32) -> SessionSettings {
        SessionSettings {
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
