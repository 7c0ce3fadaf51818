//! The macro that makes a crate an engine.

/// Exports an [`Engine`](crate::Engine) as the plugin's one symbol, `llmr_engine_entry`. Once in a `cdylib` crate:
///
/// ```text
/// engine_sdk::export_engine!(MyEngine);
/// ```
#[macro_export]
macro_rules! export_engine {
    ($engine:ty) => {
        #[cfg(panic = "abort")]
        ::std::compile_error!("an engine turns panics into statuses: build it with panic = \"unwind\"");

        /// The one exported symbol; see `llmr_engine.h`.
        // SAFETY: a plugin has one such symbol, and its type is the header's.
        #[unsafe(no_mangle)]
        pub extern "C" fn llmr_engine_entry() -> *const $crate::abi::EngineApi {
            $crate::abi::table::<$engine>()
        }
    };
}
