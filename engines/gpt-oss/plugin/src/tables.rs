//! The block tables of a batch, in the plain numbers that devices take.

use engine_sdk::{Batch, Row};

/// Of each row, for each group: the first block that is held, and the blocks.
pub(crate) struct Tables(Vec<Vec<(usize, Vec<u32>)>>);

impl Tables {
    pub(crate) fn of(batch: &Batch) -> Tables {
        let of_row = |row: Row<'_>| {
            let table = |group| {
                let table = row.table(group);
                (table.first as usize, table.blocks.iter().map(|b| b.0).collect())
            };
            (0..row.tables()).map(table).collect()
        };
        Tables(batch.rows().map(of_row).collect())
    }

    /// Each table as its device has them, by row.
    pub(crate) fn each<'a, T>(&'a self, table: impl Fn(usize, &'a [u32]) -> T) -> Vec<Vec<T>> {
        let of_row =
            |row: &'a Vec<(usize, Vec<u32>)>| row.iter().map(|(first, b)| table(*first, b)).collect();
        self.0.iter().map(of_row).collect()
    }
}
