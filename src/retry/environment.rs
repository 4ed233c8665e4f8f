//! Settings of the presets `authorization-api` and `sender`, read from environment variables.
//!
//! The client of the authorization API counts attempts: `HTTP_RETRY_ATTEMPTS=5` means five calls. The sender counts
//! retries: `MAX_RETRIES=3` means four calls. An empty variable counts as unset. An invalid value is an error, because
//! nobody would notice the default in its place.

use std::num::NonZeroU32;
use std::time::Duration;

use thiserror::Error;

use super::policy::RetryPolicy;
use super::preset::Preset;

/// Variable with the number of attempts, including the first, for [`Settings::authorization_api`].
pub const RETRY_ATTEMPTS: &str = "HTTP_RETRY_ATTEMPTS";

/// Variable with the timeout of an attempt in milliseconds for [`Settings::authorization_api`].
pub const TIMEOUT: &str = "HTTP_TIMEOUT";

/// Variable with the number of retries after the first attempt, for [`Settings::sender`].
pub const MAX_RETRIES: &str = "MAX_RETRIES";

/// A retry policy and a timeout, read from environment variables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Policy of the preset, with the number of attempts from the environment.
    pub policy: RetryPolicy,
    /// Timeout of each attempt. `None` means no timeout.
    pub timeout: Option<Duration>,
}

/// Error of an environment variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("environment variable {name} has the invalid value `{value}`; expected {expected}")]
pub struct BadVariable {
    name: &'static str,
    value: String,
    expected: &'static str,
}

impl Settings {
    /// Returns the settings of [`Preset::AuthorizationApi`] with `HTTP_RETRY_ATTEMPTS` (default: 3) and `HTTP_TIMEOUT`
    /// in milliseconds (default: no timeout). `lookup` is a function, such as [`of_process`], that returns the value of
    /// the variable with the given name.
    ///
    /// ```
    /// use tidegate::retry::environment::Settings;
    ///
    /// let lookup = |name: &str| (name == "HTTP_RETRY_ATTEMPTS").then(|| "5".to_owned());
    /// assert_eq!(Settings::authorization_api(lookup)?.policy.attempts.get(), 5);
    /// # Ok::<_, tidegate::retry::environment::BadVariable>(())
    /// ```
    pub fn authorization_api(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadVariable> {
        let mut policy = Preset::AuthorizationApi.policy();
        if let Some(attempts) = number(&lookup, RETRY_ATTEMPTS, "an integer of at least 1")? {
            policy.attempts = attempts;
        }
        let expected = "an integer of at least 1, in milliseconds";
        let millis = number(&lookup, TIMEOUT, expected)?;
        let timeout = millis.map(|millis: NonZeroU32| Duration::from_millis(millis.get().into()));
        Ok(Self { policy, timeout })
    }

    /// Returns the settings of [`Preset::Sender`] with `MAX_RETRIES`, the number of retries after the first attempt
    /// (default: 3). `lookup` is a function, such as [`of_process`], that returns the value of the variable with the
    /// given name.
    pub fn sender(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadVariable> {
        let mut policy = Preset::Sender.policy();
        if let Some(retries) = number(&lookup, MAX_RETRIES, "an integer of at least 0")? {
            policy.attempts = NonZeroU32::MIN.saturating_add(retries);
        }
        Ok(Self {
            policy,
            timeout: None,
        })
    }
}

/// Reads an environment variable of this process. Invalid Unicode becomes replacement characters, which are no number.
pub fn of_process(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn number<N: std::str::FromStr>(
    lookup: impl Fn(&str) -> Option<String>,
    name: &'static str,
    expected: &'static str,
) -> Result<Option<N>, BadVariable> {
    let Some(value) = lookup(name).filter(|value| !value.trim().is_empty()) else {
        return Ok(None);
    };
    // `parse` alone would accept a leading `+`.
    let is_digits = value.trim().bytes().all(|byte| byte.is_ascii_digit());
    match value.trim().parse() {
        Ok(number) if is_digits => Ok(Some(number)),
        _ => Err(BadVariable {
            name,
            value,
            expected,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type ReadSettings = fn(&dyn Fn(&str) -> Option<String>) -> Result<Settings, BadVariable>;

    const AUTHORIZATION_API: ReadSettings = |lookup| Settings::authorization_api(lookup);
    const SENDER: ReadSettings = |lookup| Settings::sender(lookup);

    /// Reads the settings from an environment in which only the variable `name` is set. If the value is invalid,
    /// returns the text of the error.
    fn with(read: ReadSettings, name: &str, value: &str) -> Result<Settings, String> {
        let settings = read(&|variable| (variable == name).then(|| value.to_owned()));
        settings.map_err(|error| error.to_string())
    }

    fn attempts(settings: Result<Settings, String>) -> u32 {
        settings.unwrap().policy.attempts.get()
    }

    #[test]
    fn without_variables_the_settings_are_those_of_the_presets() {
        let api = Settings::authorization_api(|_| None).unwrap();
        let sender = Settings::sender(|_| None).unwrap();
        assert_eq!(api.policy, Preset::AuthorizationApi.policy());
        assert_eq!((api.policy.attempts.get(), api.timeout), (3, None));
        assert_eq!(sender.policy, Preset::Sender.policy());
        assert_eq!((sender.policy.attempts.get(), sender.timeout), (4, None));
    }

    #[test]
    fn five_attempts_are_five_calls_and_five_retries_are_six() {
        assert_eq!(attempts(with(AUTHORIZATION_API, RETRY_ATTEMPTS, "5")), 5);
        assert_eq!(attempts(with(SENDER, MAX_RETRIES, "5")), 6);
        assert_eq!(attempts(with(SENDER, MAX_RETRIES, "0")), 1);
        assert_eq!(attempts(with(SENDER, MAX_RETRIES, "4294967295")), u32::MAX);
    }

    #[test]
    fn http_timeout_is_in_milliseconds() {
        let settings = with(AUTHORIZATION_API, TIMEOUT, " 1500 ").unwrap();
        assert_eq!(settings.timeout, Some(Duration::from_millis(1_500)));
    }

    #[test]
    fn each_preset_reads_only_its_own_variables() {
        assert_eq!(attempts(with(SENDER, RETRY_ATTEMPTS, "9")), 4);
        assert_eq!(attempts(with(AUTHORIZATION_API, MAX_RETRIES, "9")), 3);
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        assert_eq!(attempts(with(SENDER, MAX_RETRIES, "")), 4);
        assert_eq!(attempts(with(AUTHORIZATION_API, RETRY_ATTEMPTS, " ")), 3);
    }

    #[test]
    fn an_invalid_value_is_an_error_with_variable_and_value() {
        let error = |read, name, value| with(read, name, value).unwrap_err();
        assert_eq!(
            error(AUTHORIZATION_API, RETRY_ATTEMPTS, "0"),
            "environment variable HTTP_RETRY_ATTEMPTS has the invalid value `0`; expected an integer of at least 1"
        );
        assert_eq!(
            error(AUTHORIZATION_API, TIMEOUT, "5s"),
            "environment variable HTTP_TIMEOUT has the invalid value `5s`; expected an integer of at least 1, \
             in milliseconds"
        );
        assert_eq!(
            error(SENDER, MAX_RETRIES, "-1"),
            "environment variable MAX_RETRIES has the invalid value `-1`; expected an integer of at least 0"
        );
        for value in ["+5", "1.5", "many", "4294967296", "5\u{fffd}"] {
            assert!(error(SENDER, MAX_RETRIES, value).contains(value));
        }
    }
}
