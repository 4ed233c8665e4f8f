//! What a person may have meant.

/// The known word closest to a mistyped one, if any is close.
pub(super) fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| {
            let likeness = strsim::jaro_winkler(&word.to_lowercase(), &candidate.to_lowercase());
            (likeness, candidate)
        })
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// The remedy for a mistyped word: what was meant, and everything there is.
pub(super) fn remedy<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let all: Vec<_> = known.clone().map(|name| format!("`{name}`")).collect();
    let all = match all.as_slice() {
        [] => return "there is nothing to choose from here".into(),
        [only] => format!("there is only {only}"),
        _ => format!("known here: {}", all.join(", ")),
    };
    match closest(word, known) {
        Some(meant) => format!("did you mean `{meant}`? {all}"),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_miss_is_guessed_and_a_far_one_is_not() {
        let known = ["listen", "workers", "tls"];
        assert_eq!(closest("lisen", known.into_iter()), Some("listen"));
        assert_eq!(closest("LISTEN", known.into_iter()), Some("listen"));
        assert_eq!(closest("colour", known.into_iter()), None);
    }

    #[test]
    fn the_remedy_lists_what_is_known() {
        let remedy = remedy("worker", ["listen", "workers"].into_iter());
        assert_eq!(
            remedy,
            "did you mean `workers`? known here: `listen`, `workers`"
        );
    }
}
