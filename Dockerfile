# Build with: docker build --build-arg VERSION=$(git describe --always --dirty) -t policy-apiserver .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY apis apis
COPY cmd cmd
COPY pkg pkg
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags "-s -w -X policy.example.io/policy-apiserver/pkg/version.version=$VERSION" \
    -o /policy-apiserver ./cmd/policy-apiserver

# Static, so nothing else is in the image: no shell, no libraries, no certificates, which
# it gets from the cluster.
FROM scratch
COPY --from=build /policy-apiserver /policy-apiserver
USER 65532:65532
ENTRYPOINT ["/policy-apiserver"]
