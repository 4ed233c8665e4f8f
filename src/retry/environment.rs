//! What two of the presets let the environment decide.
//!
//! The authorization API's client counts attempts, the first included (`HTTP_RETRY_ATTEMPTS=5` is five calls);
//! the sender counts retries (`MAX_RETRIES=3` is four calls). Both are kept as their documents have them.
//! A variable that is empty is as good as not set; one that makes no sense is an error and never the default,
//! which nobody would notice.

use std::num::NonZeroU32;
use std::time::Duration;

use thiserror::Error;

use super::policy::Policy;
use super::preset::Preset;

/// Attempts in all, for [`Settings::authorization_api`].
pub const RETRY_ATTEMPTS: &str = "HTTP_RETRY_ATTEMPTS";

/// Milliseconds an attempt may take, for [`Settings::authorization_api`].
pub const TIMEOUT: &str = "HTTP_TIMEOUT";

/// Retries after the first attempt, for [`Settings::sender`].
pub const MAX_RETRIES: &str = "MAX_RETRIES";

/// A policy as the environment has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// What comes after each attempt.
    pub policy: Policy,
    /// How long an attempt may take; `None` for as long as it likes.
    pub timeout: Option<Duration>,
}

/// A variable that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} is `{value}`, and should be {wanted}")]
pub struct BadVariable {
    name: &'static str,
    value: String,
    wanted: &'static str,
}

impl Settings {
    /// [`Preset::AuthorizationApi`], with `HTTP_RETRY_ATTEMPTS` (3 unless set) and `HTTP_TIMEOUT` (no bound
    /// unless set) as `lookup` finds them.
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
        if let Some(attempts) = number(&lookup, RETRY_ATTEMPTS, "a whole number from 1 up")? {
            policy.attempts = attempts;
        }
        let wanted = "a whole number of milliseconds from 1 up";
        let millis = number(&lookup, TIMEOUT, wanted)?;
        let timeout = millis.map(|millis: NonZeroU32| Duration::from_millis(millis.get().into()));
        Ok(Self { policy, timeout })
    }

    /// [`Preset::Sender`], with `MAX_RETRIES` (3 unless set) as `lookup` finds it.
    pub fn sender(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadVariable> {
        let mut policy = Preset::Sender.policy();
        if let Some(retries) = number(&lookup, MAX_RETRIES, "a whole number from 0 up")? {
            policy.attempts = NonZeroU32::MIN.saturating_add(retries);
        }
        Ok(Self {
            policy,
            timeout: None,
        })
    }
}

/// A variable of this process, for the two above. What is not Unicode is passed on as far as it can be read:
/// no number has such characters, so it is refused by name.
pub fn of_process(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn number<N: std::str::FromStr>(
    lookup: impl Fn(&str) -> Option<String>,
    name: &'static str,
    wanted: &'static str,
) -> Result<Option<N>, BadVariable> {
    let Some(value) = lookup(name).filter(|value| !value.trim().is_empty()) else {
        return Ok(None);
    };
    // `parse` would read a `+`, too.
    let digits = value.trim().bytes().all(|byte| byte.is_ascii_digit());
    match value.trim().parse() {
        Ok(number) if digits => Ok(Some(number)),
        _ => Err(BadVariable {
            name,
            value,
            wanted,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = fn(&dyn Fn(&str) -> Option<String>) -> Result<Settings, BadVariable>;

    const AUTHORIZATION_API: Read = |lookup| Settings::authorization_api(lookup);
    const SENDER: Read = |lookup| Settings::sender(lookup);

    /// What is read when this one variable is set.
    fn with(read: Read, name: &str, value: &str) -> Result<Settings, String> {
        let found = read(&|asked| (asked == name).then(|| value.to_owned()));
        found.map_err(|error| error.to_string())
    }

    fn attempts(settings: Result<Settings, String>) -> u32 {
        settings.unwrap().policy.attempts.get()
    }

    #[test]
    fn without_variables_there_are_three_attempts_of_one_and_three_retries_of_the_other() {
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
    fn a_timeout_is_in_milliseconds() {
        let settings = with(AUTHORIZATION_API, TIMEOUT, " 1500 ").unwrap();
        assert_eq!(settings.timeout, Some(Duration::from_millis(1_500)));
    }

    #[test]
    fn neither_looks_at_the_variables_of_the_other() {
        assert_eq!(attempts(with(SENDER, RETRY_ATTEMPTS, "9")), 4);
        assert_eq!(attempts(with(AUTHORIZATION_API, MAX_RETRIES, "9")), 3);
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        assert_eq!(attempts(with(SENDER, MAX_RETRIES, "")), 4);
        assert_eq!(attempts(with(AUTHORIZATION_API, RETRY_ATTEMPTS, " ")), 3);
    }

    #[test]
    fn a_bad_value_is_named_with_its_variable() {
        let error = |read, name, value| with(read, name, value).unwrap_err();
        assert_eq!(
            error(AUTHORIZATION_API, RETRY_ATTEMPTS, "0"),
            "HTTP_RETRY_ATTEMPTS is `0`, and should be a whole number from 1 up"
        );
        assert_eq!(
            error(AUTHORIZATION_API, TIMEOUT, "5s"),
            "HTTP_TIMEOUT is `5s`, and should be a whole number of milliseconds from 1 up"
        );
        assert_eq!(
            error(SENDER, MAX_RETRIES, "-1"),
            "MAX_RETRIES is `-1`, and should be a whole number from 0 up"
        );
        for value in ["+5", "1.5", "many", "4294967296", "5\u{fffd}"] {
            assert!(error(SENDER, MAX_RETRIES, value).contains(value));
        }
    }
}
