//! patches
