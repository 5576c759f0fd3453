# docker build -t treadle --build-arg VERSION="$(git describe --always)" .
# docker run -p 8080:8080 -v treadle-data:/data -v "$PWD/treadle.yaml:/treadle.yaml:ro" -e TREADLE_CONFIG=/treadle.yaml treadle
#
# The container listens on all addresses, so it starts only with a config file of tenants and keys:
# docker run --rm treadle key new TENANT
#
# There is no shell and no HTTP client in the image, hence no HEALTHCHECK: let the orchestrator probe GET /readyz
# (may it get requests) and GET /healthz (is it alive), and give it 30 s to end after SIGTERM.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/treadle ./cmd/treadle
RUN mkdir -p /out/data /out/tmp

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/treadle /treadle
# A new volume takes its owner from the directory that it is mounted on.
COPY --from=build --chown=65532:65532 /out/data /data
COPY --from=build --chown=65532:65532 /out/tmp /tmp
USER 65532:65532
ENV TREADLE_LISTEN=0.0.0.0:8080 TREADLE_DATA_DIR=/data TREADLE_LOG_FORMAT=json
VOLUME /data
EXPOSE 8080
ENTRYPOINT ["/treadle"]
CMD ["serve"]
