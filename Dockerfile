# The static command on Alpine Linux, run by a user without rights: docker build -t pgspate .
FROM rust:1.95-alpine AS build
WORKDIR /pgspate
COPY . .
# The host of this image is musl, so the command is static.
RUN cargo build --release --locked -p pgspate-cli

# Alpine has the certificates of public authorities, which TLS needs.
FROM alpine:3.23
RUN adduser -D -u 10001 pgspate
COPY --from=build /pgspate/target/release/pgspate /usr/local/bin/pgspate
COPY LICENSE THIRD-PARTY-NOTICES.txt /usr/local/share/doc/pgspate/
USER 10001
WORKDIR /data
ENTRYPOINT ["pgspate"]
