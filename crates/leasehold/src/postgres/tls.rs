//! TLS to the server: rustls with the aws-lc-rs provider, named here and not taken from a process-wide default that somebody else
//! may have set. What is verified is the URL's word, see [`url`](super::url).

use super::{
    TargetError,
    url::{Target, Verify},
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use std::{fmt, sync::Arc};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The connector for a target.
pub(crate) fn connector(target: &Target) -> Result<MakeRustlsConnect, TargetError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| TargetError::Tls { place: target.place.clone(), why: e.to_string() })?;
    let config = match target.verify {
        Verify::Full => builder.with_root_certificates(roots(target)?).with_no_client_auth(),
        Verify::Nothing => unverified(builder, Signed { chain: None, provider }),
        Verify::Chain => {
            let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(target)?), Arc::clone(&provider))
                .build()
                .map_err(|e| TargetError::Tls { place: target.place.clone(), why: e.to_string() })?;
            unverified(builder, Signed { chain: Some(chain), provider })
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn unverified(builder: rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, verifier: Signed) -> ClientConfig {
    builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
}

/// The authorities that are trusted: the file's, or the system's.
fn roots(target: &Target) -> Result<RootCertStore, TargetError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &target.root_certificates {
        let wrong = |why: String| TargetError::RootCertificate { path: path.clone(), why };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
            roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
        }
        if roots.is_empty() {
            return Err(wrong("it holds no certificate".into()));
        }
    } else {
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            let why = "this system has no certificates of authorities; name a file with sslrootcert=".to_owned();
            return Err(TargetError::Tls { place: target.place.clone(), why });
        }
    }
    Ok(roots)
}

/// Verifies less than the host name: the chain, or that the server has the key of whatever certificate it shows.
struct Signed {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verifies {}", if self.chain.is_some() { "the chain" } else { "nothing" })
    }
}

impl ServerCertVerifier for Signed {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The name is looked at after everything else held.
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
