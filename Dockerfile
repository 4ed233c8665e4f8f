# syntax=docker/dockerfile:1
# docker build --build-arg TIDEGATE_COMMIT="$(git rev-parse --short=12 HEAD)" --tag tidegate .

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
ARG TIDEGATE_COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --profile dist && strip -o /tidegate target/dist/tidegate && mkdir /state

# Has glibc, libgcc and the CA certificates, and no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /tidegate /usr/bin/tidegate
COPY --from=build --chown=65532:65532 --chmod=700 /state /var/lib/tidegate
COPY packaging/docker/tidegate.toml /etc/tidegate/tidegate.toml
USER 65532:65532
VOLUME /var/lib/tidegate
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=6s CMD ["/usr/bin/tidegate", "ready"]
ENTRYPOINT ["/usr/bin/tidegate"]
CMD ["serve"]
