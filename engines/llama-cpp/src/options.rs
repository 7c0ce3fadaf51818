//! The engine's own options: a JSON object whose keys are all known, or it is refused.

use std::time::Duration;

use engine_sdk::scheduler::PREFILL_GAP_DEFAULT;
use engine_sdk::{Settings, Status, reason};
use serde_json::{Map, Value};

/// What keys and values are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvFormat {
    F32,
    F16,
    /// 8 bits, and a half float for every 32 of them.
    Q8_0,
}

impl KvFormat {
    const ALL: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8_0 => "q8_0",
        }
    }

    /// Bytes of so many numbers.
    pub(crate) fn bytes(self, numbers: u64) -> u64 {
        match self {
            KvFormat::F32 => numbers * 4,
            KvFormat::F16 => numbers * 2,
            KvFormat::Q8_0 => numbers.div_ceil(32) * 34,
        }
    }
}

/// What `options_json` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// `mmap`: weights stay pages of the file where they can.
    pub(crate) mmap: bool,
    /// `repack`: weights whose type has a faster layout on this processor are copied into it.
    pub(crate) repack: bool,
    /// `kv_format`: "f32", "f16" or "q8_0".
    pub(crate) kv_format: KvFormat,
    /// `flash_attention`: attention keeps no scores, where the device can do without.
    pub(crate) flash_attention: bool,
    /// `shared_kv`: all sequences have their keys and values in one place.
    pub(crate) shared_kv: bool,
    /// `prefill_gap_ms`: how much later a token of a stream may come because somebody else's prompt is read.
    pub(crate) prefill_gap: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mmap: true,
            repack: true,
            kv_format: KvFormat::F16,
            flash_attention: true,
            shared_kv: false,
            prefill_gap: PREFILL_GAP_DEFAULT,
        }
    }
}

/// A stream that waits longer than a minute is none.
const PREFILL_GAP_MS_MAX: u64 = 60_000;
/// As many as GGML starts.
const THREADS_MAX: u32 = 512;
const KNOWN: &str = "mmap, repack, kv_format, flash_attention, shared_kv, prefill_gap_ms";

impl Options {
    /// # Errors
    /// `UNSUPPORTED`, naming the key, and also for a number of threads that cannot be.
    pub(crate) fn of(settings: &Settings) -> Result<Options, Status> {
        if let Some(threads) = settings.threads
            && !(1..=THREADS_MAX).contains(&threads)
        {
            let message = format!("threads is {threads}, not a number from 1 to {THREADS_MAX}");
            return Err(invalid("threads", message));
        }
        let mut options = Options::default();
        if settings.options_json.is_empty() {
            return Ok(options);
        }
        let object: Map<String, Value> = serde_json::from_str(&settings.options_json)
            .map_err(|error| invalid("options_json", format!("options are not a JSON object: {error}")))?;
        for (key, value) in object {
            match key.as_str() {
                "mmap" => options.mmap = flag(&key, &value)?,
                "repack" => options.repack = flag(&key, &value)?,
                "flash_attention" => options.flash_attention = flag(&key, &value)?,
                "shared_kv" => options.shared_kv = flag(&key, &value)?,
                "kv_format" => options.kv_format = kv_format(&value)?,
                "prefill_gap_ms" => options.prefill_gap = gap(&value)?,
                _ => {
                    let message = format!("option {key} is not one of: {KNOWN}");
                    return Err(Status::unsupported(reason::UNKNOWN_OPTION, message).with_param(key));
                }
            }
        }
        Ok(options)
    }
}

fn flag(key: &str, value: &Value) -> Result<bool, Status> {
    value.as_bool().ok_or_else(|| invalid(key, format!("option {key} is {value}, not a boolean")))
}

fn gap(value: &Value) -> Result<Duration, Status> {
    let number = value.as_u64().filter(|number| (1..=PREFILL_GAP_MS_MAX).contains(number));
    number.map(Duration::from_millis).ok_or_else(|| {
        let range = format!("a whole number from 1 to {PREFILL_GAP_MS_MAX}");
        invalid("prefill_gap_ms", format!("option prefill_gap_ms is {value}, not {range}"))
    })
}

fn kv_format(value: &Value) -> Result<KvFormat, Status> {
    let found = KvFormat::ALL.into_iter().find(|format| value.as_str() == Some(format.as_str()));
    found.ok_or_else(|| {
        let known = KvFormat::ALL.map(KvFormat::as_str).join(", ");
        invalid("kv_format", format!("option kv_format is {value}, not one of: {known}"))
    })
}

fn invalid(name: &str, message: String) -> Status {
    Status::unsupported(reason::INVALID_SETTINGS, message).with_param(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Options, Status> {
        Options::of(&Settings { options_json: json.to_owned(), ..Settings::default() })
    }

    #[test]
    fn what_is_said_is_taken_and_the_rest_stays() {
        assert_eq!(of("").unwrap(), Options::default());
        let options = of(r#"{"mmap": false, "kv_format": "q8_0", "prefill_gap_ms": 50}"#).unwrap();
        let expected = Options {
            mmap: false,
            kv_format: KvFormat::Q8_0,
            prefill_gap: Duration::from_millis(50),
            ..Options::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn a_wrong_value_names_its_key() {
        for (json, key, reason) in [
            (r#"{"nmap": true}"#, "nmap", reason::UNKNOWN_OPTION),
            (r#"{"mmap": 1}"#, "mmap", reason::INVALID_SETTINGS),
            (r#"{"flash_attention": "off"}"#, "flash_attention", reason::INVALID_SETTINGS),
            (r#"{"kv_format": "int4"}"#, "kv_format", reason::INVALID_SETTINGS),
            (r#"{"prefill_gap_ms": 0}"#, "prefill_gap_ms", reason::INVALID_SETTINGS),
            ("[]", "options_json", reason::INVALID_SETTINGS),
        ] {
            let status = of(json).unwrap_err();
            assert_eq!((&*status.param, &*status.reason), (key, reason), "{json}");
        }
        let status = Options::of(&Settings { threads: Some(0), ..Settings::default() }).unwrap_err();
        assert_eq!(status.param, "threads");
    }

    #[test]
    fn q8_0_has_34_bytes_for_32_numbers() {
        assert_eq!(KvFormat::Q8_0.bytes(64), 68);
        assert_eq!(KvFormat::F16.bytes(64), 128);
        assert_eq!(KvFormat::F32.bytes(64), 256);
    }
}
