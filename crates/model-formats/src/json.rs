//! JSON objects as lists of raw members, so that a repeated key is an error and not a silent choice.

use serde::Deserializer;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// Members in file order.
pub(crate) type Members<'a> = Vec<(String, &'a RawValue)>;

/// Splits an object into its members, at most `members_max` of them. Values are checked for syntax only.
///
/// # Errors
/// No JSON object, anything after it, a key that is there twice (the message ends in "repeated key `...`"), or too
/// many members.
pub(crate) fn members(text: &str, members_max: usize) -> Result<Members<'_>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let members = json.deserialize_map(MembersVisitor { members_max })?;
    json.end()?;
    Ok(members)
}

struct MembersVisitor {
    members_max: usize,
}

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut seen = std::collections::HashSet::new();
        let mut members = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if members.len() == self.members_max {
                return Err(serde::de::Error::custom(format!("more than {} members", self.members_max)));
            }
            if !seen.insert(key.clone()) {
                return Err(serde::de::Error::custom(format!("repeated key `{key}`")));
            }
            members.push((key, map.next_value()?));
        }
        Ok(members)
    }
}
