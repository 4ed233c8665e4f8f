//! Decoded configuration values with their source location, and the schemas of lists and named tables.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{SeqAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use super::source::{NOT_CONFIGURED, Span};

/// Comparison and ordering ignore the location.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) span: Span,
    pub(super) value: T,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Located<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::deserialize(deserializer)?;
        Ok(Self {
            span: spanned.span(),
            value: spanned.into_inner(),
        })
    }
}

impl<T: JsonSchema> JsonSchema for Located<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: PartialEq> PartialEq for Located<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Located<T> {}

impl<T: PartialOrd> PartialOrd for Located<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl<T: Ord> Ord for Located<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value.cmp(&other.value)
    }
}

/// Value of a key that has a default.
#[derive(Clone, Debug)]
pub(super) struct Setting<T> {
    pub(super) value: T,
    /// `None` means that the configuration does not set the key.
    pub(super) span: Option<Span>,
}

impl<T> Setting<T> {
    pub(super) fn configured(&self) -> Option<(&T, &Span)> {
        self.span.as_ref().map(|span| (&self.value, span))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Setting<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Located { span, value } = Located::deserialize(deserializer)?;
        let span = Some(span).filter(|span| *span != NOT_CONFIGURED);
        Ok(Self { value, span })
    }
}

impl<T: JsonSchema> JsonSchema for Setting<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// A single value becomes a list of one.
#[derive(Clone, Debug)]
pub(super) struct Many<T>(pub(super) Vec<Located<T>>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Located { span, value } = Located::<OneOrMany<T>>::deserialize(deserializer)?;
        Ok(Self(match value {
            OneOrMany::One(value) => vec![Located { span, value }],
            OneOrMany::Many(values) => values,
        }))
    }
}

impl<T: JsonSchema> JsonSchema for Many<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Many_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        OneOrMany::<T>::json_schema(generator)
    }
}

/// A single value stays distinct from a list of one.
///
/// `Deserialize` is implemented manually, because serde's untagged enums lose the source location of errors.
#[derive(Clone, Debug)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<Located<T>>),
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({
            "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }]
        })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(StrDeserializer::new(text)).map(OneOrMany::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(OneOrMany::Many)
            }
        }

        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

/// Table whose keys the user chooses, such as the `NAME` of `[limit.NAME]`. Validation has checked that each is a `K`.
#[derive(Clone, Debug)]
pub(super) struct Named<K, V> {
    pub(super) entries: BTreeMap<Located<String>, Located<V>>,
    name: PhantomData<K>,
}

impl<'de, K, V: Deserialize<'de>> Deserialize<'de> for Named<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self {
            entries: BTreeMap::deserialize(deserializer)?,
            name: PhantomData,
        })
    }
}

impl<K: JsonSchema, V: JsonSchema> JsonSchema for Named<K, V> {
    fn schema_name() -> Cow<'static, str> {
        format!("Named_{}", V::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "propertyNames": generator.subschema_for::<K>(),
            "additionalProperties": generator.subschema_for::<V>(),
        })
    }
}
