//! The imports of `espalier:service`.

use super::Answer;
use crate::bindings::reward::espalier::service::services as wit;
use crate::convert::failure_out;
use crate::gate::Work;
use crate::guest::Guest;
use espalier_core::failure::Failure;
use espalier_core::host::service::{ServiceRequest, ServiceResponse};
use espalier_core::journal::{Bytes, Call, Reply};
use std::borrow::Cow;

impl wit::Host for Guest {
    async fn request(
        &mut self,
        name: String,
        method: String,
        path: String,
        body: Vec<u8>,
    ) -> Answer<wit::Response> {
        let call = Call::ServiceRequest {
            name: Cow::Borrowed(&name),
            method: Cow::Borrowed(&method),
            path: Cow::Borrowed(&path),
            body: Bytes::from(&body),
        };
        let asked = self.gate.asked(call);
        let note = super::sandbox::short(&format!("{name}: {method} {path}"));
        let services = self.capabilities.services.clone();
        let work: Work<ServiceResponse> = Box::pin(async move {
            let services = services.ok_or_else(|| {
                Failure::Invalid(format!(
                    "no service `{name}`: this rollout has none; a task declares one in `services`, the experiment in \
                     [services.{name}]"
                ))
            })?;
            let request = ServiceRequest { name, method, path, body };
            request.check()?;
            services.request(request).await
        });
        let noted = |response: Option<&ServiceResponse>| {
            let status = response.map_or_else(String::new, |response| format!(": {}", response.status));
            Some(format!("{note}{status}").into())
        };
        let answer = self.gate.pass_noted(asked, work, Ok, told, noted).await?;
        let out = |ServiceResponse { status, content_type, body }| wit::Response {
            status,
            content_type,
            body,
            extra: None,
        };
        Ok(answer.map(out).map_err(failure_out))
    }
}

fn told(response: &ServiceResponse) -> Reply<'_> {
    Reply::Response {
        status: response.status,
        content_type: Cow::Borrowed(&response.content_type),
        body: Bytes::from(&response.body),
    }
}
