//! Which attention a model gets: llama.cpp's flash attention, which keeps no scores, or the plain one, which keeps the scores of
//! every head and cell of a pass.
//!
//! llama.cpp can choose by itself when it makes the context. Here it is chosen from the header and told, so that the estimate
//! has counted what is then taken.

use engine_sdk::{Device, Status, reason};

use crate::header::{HeadSize, Header};
use crate::options::{KvFormat, Options};
use crate::{CPU, native};

/// Architectures whose scores go through a function that flash attention lacks, by llama.cpp's word.
const PLAIN: [&str; 1] = ["grok"];

/// Whether the scores are kept, on these devices; `can` answers for one device and one size of heads.
///
/// # Errors
/// `UNSUPPORTED`: the options need the attention that a device has not.
pub(crate) fn keeps_scores(
    header: &Header,
    options: &Options,
    devices: &[Device],
    can: impl Fn(&str, HeadSize, KvFormat) -> bool,
) -> Result<bool, Status> {
    // Recurrent layers alone: there is nothing to attend to. Without a KV, keys and values are made f16 on the way.
    let has_kv = header.kv_numbers.iter().any(|numbers| *numbers > 0);
    if !has_kv && header.embedding.is_none() {
        return Ok(false);
    }
    let format = if has_kv { options.kv_format } else { KvFormat::F16 };
    let why = if !options.flash_attention {
        Some("option flash_attention turns it off".to_owned())
    } else if PLAIN.contains(&header.architecture.as_str()) {
        Some(format!("llama.cpp has none for {}", header.architecture))
    } else {
        // Layers are on the accelerators if there is one.
        let alone = devices.iter().all(|device| device.id == CPU);
        let used = devices.iter().filter(|device| alone || device.id != CPU);
        let mut pairs = used.flat_map(|device| header.head_sizes.iter().map(move |size| (device, *size)));
        let lacking = pairs.find(|(device, size)| !can(&device.id, *size, format));
        lacking.map(|(device, size)| {
            format!("{} has none for heads of {} and {} numbers", device.id, size.key, size.value)
        })
    };
    match why {
        None => Ok(false),
        Some(why) if format == KvFormat::Q8_0 => {
            let message = format!(
                "option kv_format is q8_0, which needs flash attention, and {why}\nhint: set kv_format to f16"
            );
            Err(Status::unsupported(reason::INVALID_SETTINGS, message).with_param("kv_format"))
        }
        Some(_) => Ok(true),
    }
}

/// As [`keeps_scores`], by what the devices themselves say.
///
/// # Errors
/// As there.
pub(crate) fn choose(header: &Header, options: &Options, devices: &[Device]) -> Result<bool, Status> {
    keeps_scores(header, options, devices, native::has_flash_attention)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::needs::tests::{device, header};

    /// A device other than the cpu has flash attention for heads of 64.
    fn check(header: &Header, kv_format: KvFormat, devices: &[&str]) -> Result<bool, Status> {
        let devices: Vec<Device> = devices.iter().map(|id| device(id)).collect();
        let options = Options { kv_format, ..Options::default() };
        keeps_scores(header, &options, &devices, |id, size, _| id == CPU || size.key == 64)
    }

    #[test]
    fn scores_are_kept_where_a_device_that_has_layers_lacks_flash_attention() {
        let of = |devices: &[&str]| check(&header(), KvFormat::F16, devices).unwrap();
        assert!(!of(&[CPU]));
        assert!(of(&["vulkan:0", CPU]) && of(&["vulkan:0"]));
        let fitting = Header { head_sizes: vec![HeadSize { key: 64, value: 64 }], ..header() };
        assert!(!check(&fitting, KvFormat::F16, &["vulkan:0", CPU]).unwrap());
        let both = [HeadSize { key: 64, value: 64 }, HeadSize { key: 512, value: 512 }];
        let fitting = Header { head_sizes: both.to_vec(), ..header() };
        assert!(check(&fitting, KvFormat::F16, &["vulkan:0"]).unwrap(), "of one kind of layers");
    }

    #[test]
    fn an_architecture_without_it_keeps_scores_everywhere() {
        let grok = Header { architecture: "grok".to_owned(), ..header() };
        assert!(check(&grok, KvFormat::F16, &[CPU]).unwrap());
    }

    #[test]
    fn a_kv_of_eight_bits_is_refused_without_it_and_the_reason_told() {
        let status = check(&header(), KvFormat::Q8_0, &["vulkan:0"]).unwrap_err();
        assert_eq!((&*status.param, &*status.reason), ("kv_format", reason::INVALID_SETTINGS));
        assert!(status.message.contains("vulkan:0") && status.message.contains("hint: "), "{status}");
        assert!(!check(&header(), KvFormat::Q8_0, &[CPU]).unwrap());
    }

    #[test]
    fn an_option_turns_it_off() {
        let off = Options { flash_attention: false, ..Options::default() };
        assert_eq!(keeps_scores(&header(), &off, &[device(CPU)], |_, _, _| true), Ok(true));
        let eight = Options { kv_format: KvFormat::Q8_0, ..off };
        let status = keeps_scores(&header(), &eight, &[device(CPU)], |_, _, _| true).unwrap_err();
        assert!(status.message.contains("flash_attention turns it off"), "{status}");
    }

    #[test]
    fn a_model_without_attention_keeps_no_scores() {
        let recurrent = Header { kv_numbers: vec![0, 0], ..header() };
        assert!(!check(&recurrent, KvFormat::Q8_0, &["vulkan:0"]).unwrap());
    }

    #[test]
    fn the_cpu_says_itself_that_it_has_flash_attention() {
        let has = |key, value, format| native::has_flash_attention(CPU, HeadSize { key, value }, format);
        for (key, value) in [(16, 16), (64, 64), (128, 128), (192, 128), (256, 256), (576, 512)] {
            for format in [KvFormat::F16, KvFormat::F32] {
                assert!(has(key, value, format), "{key}, {format:?}");
            }
            // Of 32 numbers that share a scale.
            assert_eq!(has(key, value, KvFormat::Q8_0), key != 16, "{key}");
        }
        assert!(!native::has_flash_attention("vulkan:99", HeadSize { key: 64, value: 64 }, KvFormat::F16));
    }
}
