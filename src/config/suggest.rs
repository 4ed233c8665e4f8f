//! Suggestions for misspelt names and configuration keys.

/// `None` means that no known word is similar.
pub(super) fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| {
            let similarity = strsim::jaro_winkler(&word.to_lowercase(), &candidate.to_lowercase());
            (similarity, candidate)
        })
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

pub(crate) fn remedy<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let all: Vec<_> = known.clone().map(|name| format!("`{name}`")).collect();
    let all = match all.as_slice() {
        [] => return "the configuration defines no such name".into(),
        [only] => format!("the only valid name is {only}"),
        _ => format!("valid here: {}", all.join(", ")),
    };
    match closest(word, known) {
        Some(similar) => format!("did you mean `{similar}`? {all}"),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_word_is_suggested() {
        let known = ["listen", "workers", "tls"];
        assert_eq!(closest("lisen", known.into_iter()), Some("listen"));
        assert_eq!(closest("LISTEN", known.into_iter()), Some("listen"));
        assert_eq!(closest("colour", known.into_iter()), None);
    }

    #[test]
    fn the_remedy_lists_all_known_words() {
        let remedy = remedy("worker", ["listen", "workers"].into_iter());
        assert_eq!(
            remedy,
            "did you mean `workers`? valid here: `listen`, `workers`"
        );
    }
}
