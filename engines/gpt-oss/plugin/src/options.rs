//! The engine's own options: a JSON object whose keys are all known, or it is refused.

use engine_sdk::{Settings, Status, reason};
use gpt_oss_cpu::Isa;
use gpt_oss_cpu::pool::THREADS_MAX;
use serde_json::{Map, Value};

/// What `options_json` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// `isa`: "scalar", "avx2" or "avx512" instead of the best one.
    pub(crate) isa: Isa,
    /// `touch`: whether a load reads all weights once, so that the first request does not wait for the disk.
    pub(crate) touch: bool,
}

impl Options {
    /// # Errors
    /// `UNSUPPORTED`, naming the key, and also for a number of threads that cannot be.
    pub(crate) fn of(settings: &Settings) -> Result<Options, Status> {
        if let Some(threads) = settings.threads
            && !(1..=THREADS_MAX).contains(&(threads as usize))
        {
            let message = format!("threads is {threads}, not a number from 1 to {THREADS_MAX}");
            return Err(Status::unsupported(reason::INVALID_SETTINGS, message));
        }
        let mut options = Options { isa: Isa::detect(), touch: true };
        if settings.options_json.is_empty() {
            return Ok(options);
        }
        let object: Map<String, Value> = serde_json::from_str(&settings.options_json)
            .map_err(|error| invalid(format!("options are not a JSON object: {error}")))?;
        for (key, value) in object {
            match key.as_str() {
                "isa" => options.isa = isa(&value)?,
                "touch" => {
                    let flag = value.as_bool();
                    options.touch =
                        flag.ok_or_else(|| invalid(format!("option touch is {value}, not a boolean")))?;
                }
                _ => {
                    let message = format!("option {key} is not one of: isa, touch");
                    return Err(Status::unsupported(reason::UNKNOWN_OPTION, message));
                }
            }
        }
        Ok(options)
    }
}

fn isa(value: &Value) -> Result<Isa, Status> {
    let known = [Isa::Scalar, Isa::Avx2, Isa::Avx512];
    let Some(isa) = known.into_iter().find(|isa| value.as_str() == Some(isa.as_str())) else {
        return Err(invalid(format!("option isa is {value}, not one of: scalar, avx2, avx512")));
    };
    if !isa.is_available() {
        return Err(invalid(format!("option isa is {value}, which this processor does not have")));
    }
    Ok(isa)
}

fn invalid(message: String) -> Status {
    Status::unsupported(reason::INVALID_SETTINGS, message)
}
