//! Tables whose entries have names. A name consists of an index and a generation. When an entry is
//! removed, the generation at its index changes, so the next entry at this index gets a new name. A
//! name comes again only after 2^32 - 1 removals at its index.

/// The name of an entry. After the entry was removed, a look-up recognises the name as stale.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Name {
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_u64(name: u64) -> Self {
        Self { index: name as u32, generation: (name >> 32) as u32 }
    }
}

/// A table that allocates memory only when it has more entries than ever before.
pub(crate) struct Table<V> {
    entries: Vec<Place<V>>,
    free: Vec<u32>,
}

struct Place<V> {
    generation: u32,
    value: Option<V>,
}

/// The largest number of entries in a table.
const ENTRIES_MAX: usize = 1 << 24;

impl<V> Table<V> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: V) -> Name {
        if let Some(index) = self.free.pop() {
            let place = &mut self.entries[index as usize];
            place.value = Some(value);
            return Name { index, generation: place.generation };
        }
        assert!(self.entries.len() < ENTRIES_MAX, "the table is full");
        self.entries.push(Place { generation: 0, value: Some(value) });
        Name { index: (self.entries.len() - 1) as u32, generation: 0 }
    }

    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut V> {
        let place = self.entries.get_mut(name.index as usize)?;
        if place.generation == name.generation { place.value.as_mut() } else { None }
    }

    pub(crate) fn get(&self, name: Name) -> Option<&V> {
        let place = self.entries.get(name.index as usize)?;
        if place.generation == name.generation { place.value.as_ref() } else { None }
    }

    pub(crate) fn remove(&mut self, name: Name) -> Option<V> {
        let place = self.entries.get_mut(name.index as usize)?;
        if place.generation != name.generation {
            return None;
        }
        let value = place.value.take()?;
        // The highest generation is never used, so that no name is all ones.
        place.generation = (place.generation + 1) % u32::MAX;
        self.free.push(name.index);
        Some(value)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Name, &mut V)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, place)| {
            let name = Name { index: index as u32, generation: place.generation };
            Some((name, place.value.as_mut()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_names_find_nothing() {
        let mut table = Table::new();
        let first = table.insert('a');
        let second = table.insert('b');
        assert_eq!(Name::from_u64(second.to_u64()).to_u64(), second.to_u64());
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let third = table.insert('c');
        assert_eq!(third.index, first.index, "the index must be reused");
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(third), Some(&mut 'c'));
        assert_eq!(table.len(), 2);
        assert_eq!(table.iter_mut().map(|(_, value)| *value).collect::<String>(), "cb");
    }
}
