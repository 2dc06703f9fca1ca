//! Connecting.

use crate::target::server_error;
/// A connection.
pub struct Connection {
    /// The client.
    pub client: tokio_postgres::Client,
    pid: i32,
}
impl Connection {
    /// pid
    pub fn backend_pid(&self) -> i32 { self.pid }
    /// connects
    pub async fn open(dsn: &str) -> crate::Result<Connection> {
        let (client, conn) = tokio_postgres::connect(dsn, tokio_postgres::NoTls).await.map_err(server_error("could not connect".into()))?;
        tokio::spawn(conn);
        let pid = client.query_one("select pg_backend_pid()", &[]).await.map_err(server_error("x".into()))?.get(0);
        Ok(Connection { client, pid })
    }
}
