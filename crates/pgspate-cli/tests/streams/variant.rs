//! How Debezium's connectors are set, by chance.

use crate::chance::Chance;

/// How a connector is set, by chance.
pub(crate) struct Variant {
    pub(crate) settings: Vec<(String, String)>,
    /// What `apply` has to be told.
    pub(crate) args: String,
    /// Types of columns that do not come, or not as they are.
    pub(crate) left_out: Vec<&'static str>,
}

/// What connectors of one trial have in common, as it decides what the source may do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sort {
    pub(crate) is_flat: bool,
    pub(crate) has_headers: bool,
    /// NaN and the infinities, which decimals as bytes do not have.
    pub(crate) has_special_numbers: bool,
}

impl Sort {
    pub(crate) fn by_chance(chance: &mut Chance) -> Sort {
        Sort {
            is_flat: chance.below(3) == 0,
            has_headers: chance.below(2) == 0,
            has_special_numbers: chance.below(2) == 0,
        }
    }
}

impl Variant {
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn by_chance(sort: Sort, chance: &mut Chance) -> Variant {
        let mut variant = Variant {
            settings: Vec::new(),
            args: "--format debezium".to_owned(),
            // The number of its bits is not told, others come as bytes that nothing explains, and
            // an enum's array is lost if a NULL is in it, and a name in changes.
            left_out: vec![
                "varbit(20)",
                "tsquery",
                "line",
                "lseg",
                "box",
                "path",
                "polygon",
                "circle",
                "duo",
                "pg_lsn",
                "mood[]",
                "name",
            ],
        };
        let has_schemas = chance.below(2) == 0;
        for part in ["", "key.", "value.", "header."] {
            variant.set(&format!("{part}converter.schemas.enable"), &has_schemas.to_string());
        }
        let shapes: &[&str] = match sort {
            Sort { has_headers: true, .. } => &["whole", "strings"],
            Sort { is_flat: true, .. } => &["pair"],
            _ => &["pair", "value"],
        };
        variant.set("records.shape", chance.pick(shapes));
        variant.set("interval.handling.mode", "string");
        variant.set("provide.transaction.metadata", chance.pick(&["true", "false"]));
        variant.set("hstore.handling.mode", chance.pick(&["json", "map"]));
        variant.set("heartbeat.interval.ms", chance.pick(&["0", "300"]));
        variant.times(has_schemas, chance);
        variant.numbers_and_bytes(sort, has_schemas, chance);
        match sort.is_flat {
            true => variant.flatten(sort, chance),
            false => variant.set("tombstones.on.delete", chance.pick(&["true", "false"])),
        }
        variant
    }

    fn times(&mut self, has_schemas: bool, chance: &mut Chance) {
        let mode = chance.pick(&["adaptive", "adaptive_time_microseconds", "connect", "isostring"]);
        self.set("time.precision.mode", mode);
        let left_out: &[&str] = match (mode, has_schemas) {
            ("connect", _) => &["time", "timestamp", "timestamp[]"],
            ("adaptive", false) => &["time(3)", "timestamp(3)"],
            ("adaptive_time_microseconds", false) => &["timestamp(3)"],
            _ => &[],
        };
        self.left_out.extend(left_out);
        match (mode, has_schemas) {
            ("connect", false) => self.args += " --debezium-time ms",
            ("isostring", _) | (_, true) => {}
            (_, false) => self.args += " --debezium-time us",
        }
    }

    fn numbers_and_bytes(&mut self, sort: Sort, has_schemas: bool, chance: &mut Chance) {
        let bytes = chance.pick(&["bytes", "base64", "hex"]);
        self.set("binary.handling.mode", bytes);
        let digits = if bytes == "hex" { "hex" } else { "base64" };
        self.args += &format!(" --debezium-bytes {digits}");
        if bytes == "base64" {
            // What stands for a value that is not told is written as NULL.
            self.left_out.push("raw");
        }
        if !has_schemas {
            self.args += " --debezium-decimals text";
            self.left_out.extend(["bit(5)", "bit(16)"]);
        }
        let is_precise = has_schemas && !sort.has_special_numbers && chance.below(2) == 0;
        let decimals = if is_precise { "precise" } else { "string" };
        self.set("decimal.handling.mode", decimals);
    }

    fn flatten(&mut self, sort: Sort, chance: &mut Chance) {
        self.set("transforms", "unwrap");
        self.set("transforms.unwrap.type", "io.debezium.transforms.ExtractNewRecordState");
        let deletes = ["rewrite", "rewrite-with-tombstone", "tombstone", "delete-to-tombstone"];
        self.set("transforms.unwrap.delete.tombstone.handling.mode", chance.pick(&deletes));
        let named = chance.pick(&["op,table,NAME", "op,source.table,source.NAME,source.ts_ms"]);
        let has_topic = sort.has_headers && chance.below(3) == 0;
        self.set("transforms.unwrap.add.fields", if has_topic { "op" } else { named });
    }
}
