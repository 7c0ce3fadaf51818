//! Argument structs of kernels: declared once for each, and laid out as the C++ compiler lays out its twin.

use crate::Address;

/// What goes to a kernel by value.
pub trait Arguments {
    /// As C lays it out: every field at a multiple of its size, the whole a multiple of the largest.
    fn bytes(&self) -> Vec<u8>;
}

/// A type of a field.
pub trait Field: Copy {
    fn put(self, to: &mut Vec<u8>);
}

impl Field for Address {
    fn put(self, to: &mut Vec<u8>) {
        to.resize(to.len().next_multiple_of(8), 0);
        to.extend_from_slice(&self.0.to_le_bytes());
    }
}

impl Field for u64 {
    fn put(self, to: &mut Vec<u8>) {
        Address(self).put(to);
    }
}

impl Field for u32 {
    fn put(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.to_le_bytes());
    }
}

impl Field for f32 {
    fn put(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.to_le_bytes());
    }
}

/// Declares an argument struct: the twin, in order of fields and in types, of the struct of that name in `kernels/`.
/// Every struct has a pointer, so that its size is a multiple of 8.
macro_rules! arguments {
    ($(#[$meta:meta])* pub struct $name:ident { $(pub $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name { $(pub $field: $kind,)* }

        impl $crate::arguments::Arguments for $name {
            fn bytes(&self) -> Vec<u8> {
                let mut bytes = Vec::new();
                $($crate::arguments::Field::put(self.$field, &mut bytes);)*
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes
            }
        }
    };
}
pub(crate) use arguments;
