//! Cookies and local storage, in and out.
use serde::{Deserialize, Serialize};
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StorageState {}
impl crate::context::BrowserContext { pub async fn set_storage_state(&self, _s: &StorageState) -> crate::error::Result<()> { Ok(()) } }
