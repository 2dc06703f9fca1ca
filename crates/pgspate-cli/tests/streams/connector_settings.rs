//! Random settings of Debezium's connectors.

use crate::test_random::TestRandom;

/// Random settings of one connector.
pub(crate) struct ConnectorSettings {
    pub(crate) settings: Vec<(String, String)>,
    /// The options that `pgspate apply` needs.
    pub(crate) args: String,
    /// Types of columns that the connector omits or changes.
    pub(crate) excluded_types: Vec<&'static str>,
}

/// Features that all connectors of a trial share. They decide which changes the source may make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectorFeatures {
    /// Whether events are flattened to rows without an envelope.
    pub(crate) is_flat: bool,
    /// Whether records have Kafka headers.
    pub(crate) has_headers: bool,
    /// Whether NaN and infinite numbers occur. Debezium cannot write them as bytes.
    pub(crate) has_special_numbers: bool,
}

impl ConnectorFeatures {
    pub(crate) fn random(random: &mut TestRandom) -> ConnectorFeatures {
        ConnectorFeatures {
            is_flat: random.below(3) == 0,
            has_headers: random.below(2) == 0,
            has_special_numbers: random.below(2) == 0,
        }
    }
}

impl ConnectorSettings {
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn random(
        features: ConnectorFeatures,
        random: &mut TestRandom,
    ) -> ConnectorSettings {
        let mut variant = ConnectorSettings {
            settings: Vec::new(),
            args: "--format debezium".to_owned(),
            // Debezium omits the number of bits of a varbit, and writes some other types as bytes
            // without their encoding. It loses arrays of an enum that contain NULL, and in changes
            // also values of the type `name`.
            excluded_types: vec![
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
        let has_schemas = random.below(2) == 0;
        for part in ["", "key.", "value.", "header."] {
            variant.set(&format!("{part}converter.schemas.enable"), &has_schemas.to_string());
        }
        let shapes: &[&str] = match features {
            ConnectorFeatures { has_headers: true, .. } => &["whole", "strings"],
            ConnectorFeatures { is_flat: true, .. } => &["pair"],
            _ => &["pair", "value"],
        };
        variant.set("records.shape", random.pick(shapes));
        variant.set("interval.handling.mode", "string");
        variant.set("provide.transaction.metadata", random.pick(&["true", "false"]));
        variant.set("hstore.handling.mode", random.pick(&["json", "map"]));
        variant.set("heartbeat.interval.ms", random.pick(&["0", "300"]));
        variant.choose_time_settings(has_schemas, random);
        variant.numbers_and_bytes(features, has_schemas, random);
        match features.is_flat {
            true => variant.flatten(features, random),
            false => variant.set("tombstones.on.delete", random.pick(&["true", "false"])),
        }
        variant
    }

    /// Chooses how the connector writes dates and times.
    fn choose_time_settings(&mut self, has_schemas: bool, random: &mut TestRandom) {
        let mode = random.pick(&["adaptive", "adaptive_time_microseconds", "connect", "isostring"]);
        self.set("time.precision.mode", mode);
        let excluded_types: &[&str] = match (mode, has_schemas) {
            ("connect", _) => &["time", "timestamp", "timestamp[]"],
            ("adaptive", false) => &["time(3)", "timestamp(3)"],
            ("adaptive_time_microseconds", false) => &["timestamp(3)"],
            _ => &[],
        };
        self.excluded_types.extend(excluded_types);
        match (mode, has_schemas) {
            ("connect", false) => self.args += " --debezium-time ms",
            ("isostring", _) | (_, true) => {}
            (_, false) => self.args += " --debezium-time us",
        }
    }

    /// Chooses how the connector writes decimals and bytes.
    fn numbers_and_bytes(
        &mut self,
        features: ConnectorFeatures,
        has_schemas: bool,
        random: &mut TestRandom,
    ) {
        let bytes = random.pick(&["bytes", "base64", "hex"]);
        self.set("binary.handling.mode", bytes);
        let digits = if bytes == "hex" { "hex" } else { "base64" };
        self.args += &format!(" --debezium-bytes {digits}");
        if bytes == "base64" {
            // The placeholder of an omitted value is written as NULL.
            self.excluded_types.push("raw");
        }
        if !has_schemas {
            self.args += " --debezium-decimals text";
            self.excluded_types.extend(["bit(5)", "bit(16)"]);
        }
        let is_precise = has_schemas && !features.has_special_numbers && random.below(2) == 0;
        let decimals = if is_precise { "precise" } else { "string" };
        self.set("decimal.handling.mode", decimals);
    }

    /// Adds the transform that flattens events.
    fn flatten(&mut self, features: ConnectorFeatures, random: &mut TestRandom) {
        self.set("transforms", "unwrap");
        self.set("transforms.unwrap.type", "io.debezium.transforms.ExtractNewRecordState");
        let deletes = ["rewrite", "rewrite-with-tombstone", "tombstone", "delete-to-tombstone"];
        self.set("transforms.unwrap.delete.tombstone.handling.mode", random.pick(&deletes));
        let named = random.pick(&["op,table,NAME", "op,source.table,source.NAME,source.ts_ms"]);
        let has_topic = features.has_headers && random.below(3) == 0;
        self.set("transforms.unwrap.add.fields", if has_topic { "op" } else { named });
    }
}
