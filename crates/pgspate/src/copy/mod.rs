//! Chunks and lanes: the one way any byte reaches the server.
