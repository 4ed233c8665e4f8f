//! Configuration file of a command.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// In this order.
const DEFAULTS: [&str; 2] = ["./tidegate.toml", "/etc/tidegate/tidegate.toml"];

/// Arguments that name the configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ConfigFile {
    /// Configuration file. Default: ./tidegate.toml, or else /etc/tidegate/tidegate.toml
    file: Option<PathBuf>,
    /// The same as FILE
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// The file that the command line names.
    pub(super) fn named(&self) -> Option<&Path> {
        self.file.as_deref().or(self.config.as_deref())
    }

    /// The named file, or the first default file that exists. Otherwise the error ends with `usage`.
    pub(super) fn find(&self, usage: &str) -> anyhow::Result<PathBuf> {
        let named = self.named().map(Path::to_owned);
        let default = || {
            DEFAULTS
                .map(PathBuf::from)
                .into_iter()
                .find(|path| path.exists())
        };
        match named.or_else(default) {
            Some(path) => Ok(path),
            None => bail!(
                "no configuration file: neither {} nor {} exists\n\n{usage}",
                DEFAULTS[0],
                DEFAULTS[1]
            ),
        }
    }
}
