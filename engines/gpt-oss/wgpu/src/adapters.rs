//! Which adapters this machine has, and whether gpt-oss can run on them.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use engine_sdk::cards;

use crate::device::DeviceError;
use crate::registered::{self, Shown};
use crate::shaders::Form;

/// Storage buffers that a kernel binds, at most: those of `experts_tile`.
const BINDINGS: u32 = 7;
/// Bytes of a kernel's arguments, at most.
const ARGUMENT_BYTES: u32 = 64;
/// Threads of a workgroup, at most.
const THREADS: u32 = 256;
/// Subgroups that share a tile of `matrices.wgsl`, and rows of the matrices that there are kernels for, the best first.
const SUBGROUPS: u32 = 8;
const MATRIX_SIZES: [u32; 2] = [16, 8];
/// Memory of a workgroup, at most: that of `attention_prefill` with the most heads there are kernels for.
const WORKGROUP_BYTES: u32 = 32 << 10;

/// What wgpu speaks to, in the order in which devices are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    Metal,
    Vulkan,
    D3d12,
}

impl Api {
    pub const ALL: [Api; 3] = [Api::Metal, Api::Vulkan, Api::D3d12];

    pub fn as_str(self) -> &'static str {
        match self {
            Api::Metal => "metal",
            Api::Vulkan => "vulkan",
            Api::D3d12 => "d3d12",
        }
    }

    fn of(backend: wgpu::Backend) -> Option<Api> {
        match backend {
            wgpu::Backend::Metal => Some(Api::Metal),
            wgpu::Backend::Vulkan => Some(Api::Vulkan),
            wgpu::Backend::Dx12 => Some(Api::D3d12),
            _ => None,
        }
    }
}

/// Whether an adapter can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Usable,
    /// It computes on the processor: counts as the cpu, and only with leave.
    Software,
    /// What it lacks, with both numbers.
    Unusable(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Usable => f.write_str("usable"),
            Verdict::Software => f.write_str("a software adapter: counts as the cpu"),
            Verdict::Unusable(why) => f.write_str(why),
        }
    }
}

/// A GPU as one interface of the system shows it.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// `vulkan:0`
    pub id: String,
    pub api: Api,
    pub name: String,
    /// Name and version of the driver, as it says itself.
    pub driver: String,
    pub verdict: Verdict,
    /// Bytes of a buffer, and of what a kernel sees of it, at most. Whoever opens it may ask for less.
    pub buffer_max: u64,
    pub binding_max: u64,
    /// Bytes of a buffer of weights at most: those of one tensor are in several where they are more. Whoever opens it may ask for
    /// less.
    pub weights_max: u64,
    /// Bytes that may be taken of it: what Metal recommends; none: as many as it gives. Whoever opens it may ask for less.
    pub memory_max: Option<u64>,
    /// Whether weights are read where their file is mapped: on Metal. Elsewhere a copy of their pages stands in for them, which is
    /// twice the memory: for tests of what is bound where.
    pub in_place: bool,
    /// Threads that run in step: smallest and largest number.
    pub subgroup: (u32, u32),
    pub has_f16: bool,
    /// Of the kernels: the best that it has; whoever opens it may ask for the plain one.
    pub form: Form,
    pub(crate) adapter: wgpu::Adapter,
}

impl Adapter {
    /// All there are, in the order in which they are to be offered: by [`Api`], then as they are numbered: as the node numbers
    /// cards, hardware before software. Allocates nothing on them.
    pub fn all() -> Vec<Adapter> {
        // Drivers are loaded once, which takes long; adapters are listed anew.
        static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
        let instance = INSTANCE.get_or_init(|| {
            let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
            descriptor.backends = wgpu::Backends::METAL | wgpu::Backends::VULKAN | wgpu::Backends::DX12;
            // Nothing that would look for debugging layers: they are not part of what users have.
            descriptor.flags = wgpu::InstanceFlags::empty();
            wgpu::Instance::new(descriptor)
        });
        let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        let mut adapters: Vec<(Api, bool, wgpu::Adapter)> = found
            .into_iter()
            .filter_map(|adapter| {
                let info = adapter.get_info();
                Some((Api::of(info.backend)?, info.device_type == wgpu::DeviceType::Cpu, adapter))
            })
            .collect();
        adapters.sort_by_key(|(api, is_software, _)| (*api, *is_software));
        let there = if cfg!(target_os = "linux") { cards::cards(Path::new("/")) } else { Vec::new() };
        let registered = registered::cards();
        let mut all = Vec::new();
        for api in Api::ALL {
            let (of_api, others) = adapters.into_iter().partition(|(of, ..)| *of == api);
            adapters = others;
            let infos: Vec<wgpu::AdapterInfo> =
                of_api.iter().map(|(.., adapter)| adapter.get_info()).collect();
            let numbers = if cfg!(windows) {
                let shown = of_api.iter().zip(&infos).map(|((_, is_software, _), info)| Shown {
                    kind: (info.vendor, info.device),
                    name: &info.name,
                    is_software: *is_software,
                });
                registered::numbers(&registered, &shown.collect::<Vec<_>>())
            } else {
                let addresses: Vec<&str> = infos.iter().map(|info| info.device_pci_bus_id.as_str()).collect();
                cards::of(if api == Api::Vulkan { &there } else { &[] }, &addresses)
            };
            let mut numbered: Vec<_> = numbers.into_iter().zip(of_api).collect();
            numbered.sort_by_key(|(number, _)| *number);
            all.extend(numbered.into_iter().map(|(number, (_, is_software, adapter))| {
                Adapter::of(format!("{}:{number}", api.as_str()), api, is_software, adapter)
            }));
        }
        all
    }

    fn of(id: String, api: Api, is_software: bool, adapter: wgpu::Adapter) -> Adapter {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let verdict = match lacks(&limits, features) {
            Some(why) => Verdict::Unusable(why),
            None if is_software => Verdict::Software,
            None => Verdict::Usable,
        };
        Adapter {
            id,
            api,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            name: info.name,
            verdict,
            buffer_max: limits.max_buffer_size,
            binding_max: limits.max_storage_buffer_binding_size,
            weights_max: u64::MAX,
            memory_max: memory_max(&adapter),
            in_place: api == Api::Metal,
            subgroup: (info.subgroup_min_size, info.subgroup_max_size),
            form: form(
                api,
                features,
                &limits,
                info.subgroup_max_size,
                &adapter.cooperative_matrix_properties(),
            ),
            has_f16: features.contains(wgpu::Features::SHADER_F16),
            adapter,
        }
    }

    /// The adapter with this id; `vulkan` alone is the first of them.
    ///
    /// # Errors
    /// [`DeviceError::NoAdapter`], with all there are; [`DeviceError::Unusable`]; for a software adapter without leave
    /// [`DeviceError::Software`].
    pub fn find(id: &str, allow_software: bool) -> Result<Adapter, DeviceError> {
        let mut all = Adapter::all();
        let wanted = |a: &Adapter| a.id == id || a.api.as_str() == id;
        let Some(at) = all.iter().position(wanted) else {
            let known = match &all[..] {
                [] => "none".to_owned(),
                all => all.iter().map(|a| a.id.as_str()).collect::<Vec<_>>().join(", "),
            };
            return Err(DeviceError::NoAdapter { id: id.to_owned(), known });
        };
        let adapter = all.swap_remove(at);
        match &adapter.verdict {
            Verdict::Usable => Ok(adapter),
            Verdict::Software if allow_software => Ok(adapter),
            Verdict::Software => Err(DeviceError::Software { id: adapter.id, name: adapter.name }),
            Verdict::Unusable(why) => {
                Err(DeviceError::Unusable { id: adapter.id, name: adapter.name, why: why.clone() })
            }
        }
    }
}

/// What the system recommends to take of an adapter at most, where it says so: Metal.
fn memory_max(adapter: &wgpu::Adapter) -> Option<u64> {
    #[cfg(target_os = "macos")]
    return crate::metal::working_set_bytes(adapter);
    #[cfg(not(target_os = "macos"))]
    let _ = adapter;
    #[cfg(not(target_os = "macos"))]
    None
}

/// What a device is asked for, besides limits.
pub(crate) fn features(form: Form) -> wgpu::Features {
    let subgroups = wgpu::Features::IMMEDIATES | wgpu::Features::SUBGROUP;
    match form {
        Form::Plain => wgpu::Features::IMMEDIATES,
        Form::Subgroups => subgroups,
        Form::Matrices { .. } => {
            subgroups | wgpu::Features::SHADER_F16 | wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        }
    }
}

/// The best form of the kernels that an adapter has.
fn form(
    api: Api,
    has: wgpu::Features,
    limits: &wgpu::Limits,
    subgroup_max: u32,
    matrices: &[wgpu::CooperativeMatrixProperties],
) -> Form {
    // Matrices are only there where subgroups are of 32, which Metal does not say.
    let threads = SUBGROUPS * if api == Api::Metal { 32 } else { subgroup_max };
    let has_size = |size: u32| {
        matrices.iter().any(|m| {
            [m.m_size, m.n_size, m.k_size] == [size; 3]
                && m.ab_type == wgpu::CooperativeScalarType::F16
                && m.cr_type == wgpu::CooperativeScalarType::F32
        })
    };
    let of_size = MATRIX_SIZES.into_iter().find(|size| has_size(*size));
    let forms = of_size.map(|size| Form::Matrices { size, threads }).into_iter().chain([Form::Subgroups]);
    let fits = |form: &Form| !matches!(form, Form::Matrices { threads, .. } if *threads > limits.max_compute_invocations_per_workgroup);
    forms.filter(fits).find(|form| has.contains(features(*form))).unwrap_or(Form::Plain)
}

/// What an adapter lacks for the kernels; none when nothing.
fn lacks(limits: &wgpu::Limits, features: wgpu::Features) -> Option<String> {
    if !features.contains(wgpu::Features::IMMEDIATES) {
        return Some("kernels cannot be given arguments (IMMEDIATES)".to_owned());
    }
    let needed = [
        ("storage buffers of a kernel", limits.max_storage_buffers_per_shader_stage, BINDINGS),
        ("bytes of a kernel's arguments", limits.max_immediate_size, ARGUMENT_BYTES),
        ("threads of a workgroup", limits.max_compute_invocations_per_workgroup, THREADS),
        ("bytes of a workgroup's memory", limits.max_compute_workgroup_storage_size, WORKGROUP_BYTES),
    ];
    needed
        .into_iter()
        .find(|(_, has, needs)| has < needs)
        .map(|(what, has, needs)| format!("{what}: it has {has}, and the kernels need {needs}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_without_room_is_refused_with_both_numbers() {
        let whole = wgpu::Limits {
            max_storage_buffers_per_shader_stage: BINDINGS,
            max_immediate_size: ARGUMENT_BYTES,
            max_compute_invocations_per_workgroup: THREADS,
            max_compute_workgroup_storage_size: WORKGROUP_BYTES,
            ..wgpu::Limits::default()
        };
        let features = wgpu::Features::IMMEDIATES;
        assert_eq!(lacks(&whole, features), None);
        let small = wgpu::Limits { max_compute_workgroup_storage_size: 16384, ..whole.clone() };
        let why = lacks(&small, features).expect("too small");
        assert!(why.contains("16384") && why.contains("32768"), "{why}");
        assert!(lacks(&whole, wgpu::Features::empty()).is_some());
    }

    #[test]
    fn the_form_of_the_kernels_is_what_an_adapter_has() {
        let limits = wgpu::Limits { max_compute_invocations_per_workgroup: 512, ..wgpu::Limits::default() };
        let square = |size, ab_type| wgpu::CooperativeMatrixProperties {
            m_size: size,
            n_size: size,
            k_size: size,
            ab_type,
            cr_type: wgpu::CooperativeScalarType::F32,
            saturating_accumulation: false,
        };
        let (f16, f32) = (wgpu::CooperativeScalarType::F16, wgpu::CooperativeScalarType::F32);
        let all = features(Form::ALL[3]);
        let of = |has, subgroup, matrices: &[_]| form(Api::Vulkan, has, &limits, subgroup, matrices);
        assert_eq!(
            of(all, 32, &[square(8, f16), square(16, f16)]),
            Form::Matrices { size: 16, threads: 256 }
        );
        assert_eq!(of(all, 8, &[square(8, f16)]), Form::Matrices { size: 8, threads: 64 });
        // No matrices of f16, none that fit, or no leave to use them.
        assert_eq!(of(all, 32, &[square(8, f32)]), Form::Subgroups);
        assert_eq!(of(all, 128, &[square(8, f16)]), Form::Subgroups);
        assert_eq!(of(features(Form::Subgroups), 32, &[square(8, f16)]), Form::Subgroups);
        assert_eq!(of(wgpu::Features::IMMEDIATES, 32, &[]), Form::Plain);
        // Metal speaks of 64 at most, and has 32.
        let on_metal = form(Api::Metal, all, &limits, 64, &[square(8, f16)]);
        assert_eq!(on_metal, Form::Matrices { size: 8, threads: 256 });
    }

    #[test]
    fn metal_goes_before_vulkan_and_vulkan_before_direct3d() {
        assert!(Api::ALL.is_sorted());
        assert_eq!(Api::ALL.map(Api::as_str), ["metal", "vulkan", "d3d12"]);
    }
}
