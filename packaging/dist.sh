#!/usr/bin/env bash
# Packages the binary that `make dist` has built: writes a Debian package, a tarball, a list of the crates in the binary
# (SBOM) and their checksums to target/packages. The time stamps in them are the time of the commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath "${CARGO_TARGET_DIR:-target}")
binary=$target/dist/tidegate
packages=$target/packages
generated=$target/dist/package   # Cargo.toml names it for cargo-deb
version=$(cargo pkgid --locked)
version=${version##*[#@]}
triple=$(rustc -vV | sed -n 's/^host: //p')
name=tidegate-$version-$triple
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

cargo install --quiet --locked --root "$target/tools" cargo-deb@3.8.0 cargo-cyclonedx@0.5.9
export PATH=$target/tools/bin:$PATH

rm -rf "$packages" "$generated"
mkdir -p "$packages" "$generated"/{man,completions}
"$binary" man "$generated/man"
gzip -n9 "$generated"/man/*
"$binary" completions bash >"$generated/completions/tidegate.bash"
"$binary" completions zsh >"$generated/completions/_tidegate"
"$binary" completions fish >"$generated/completions/tidegate.fish"

cargo deb --quiet --locked --no-build --strip --output "$packages"

stage=$generated/$name
mkdir -p "$stage"
strip -o "$stage/tidegate" "$binary"
cp -r README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs config packaging/systemd \
    "$generated"/{man,completions} "$stage"
tar --create --directory "$generated" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX "$name" | gzip -n9 >"$packages/$name.tar.gz"

# cargo-cyclonedx writes only into the directory of Cargo.toml.
cargo cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --override-filename "$name.cdx"
sed "s|file://$PWD|file://.|g" "$name.cdx.json" >"$packages/$name.cdx.json"
rm "$name.cdx.json"

cd "$packages"
sha256sum -- * >SHA256SUMS
ls -l
