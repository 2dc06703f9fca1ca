//! The server stores each field that the encoder accepts as it stores the same field from COPY
//! text.

#[path = "support/field_compare.rs"]
mod field_compare;
#[path = "support/field_server.rs"]
mod field_server;
#[path = "support/field_spellings.rs"]
mod field_spellings;

use field_compare::{Column, SESSIONS, TYPES, TYPES_SQL, session};
use field_server::FieldServer;

#[tokio::test]
async fn known_spellings_are_stored_as_from_text() {
    let server = FieldServer::start();
    let spellings = field_spellings::all();
    let mut wrong = Vec::new();
    for (number, settings) in SESSIONS.iter().enumerate() {
        let client = server.connect().await;
        client.batch_execute(TYPES_SQL).await.unwrap();
        client.batch_execute(settings).await.unwrap();
        let session = session(&client).await;
        let mut types = TYPES.to_vec();
        if session.server_version >= 150_000 {
            types.extend(["numeric(3,5)", "numeric(5,-2)"]);
        }
        // Settings do not affect the other types, so these are compared only once.
        types.retain(|sql_type| number == 0 || depends_on_session(sql_type));
        for sql_type in types {
            let column = Column::new(&client, sql_type, &session).await;
            let (taken, differences) = column.compare(&client, &spellings).await;
            assert!(taken > 0, "{sql_type}: the encoder must accept a spelling");
            wrong.extend(differences.into_iter().map(|what| format!("{what} ({settings})")));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns whether the session's settings affect how the server reads a type.
fn depends_on_session(sql_type: &str) -> bool {
    ["date", "time", "interval", "tsrange", "tstzrange", "span"]
        .iter()
        .any(|part| sql_type.contains(part))
}
