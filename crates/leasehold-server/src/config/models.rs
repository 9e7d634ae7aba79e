//! The `[[model]]` sections: who serves each, what it may be asked, and which are asked when it fails.

use super::{
    ConfigError,
    check::{Checker, DEFAULT_MODEL, is_env_name},
    diagnostic::suggest,
    effective::{Model, ModelKind, Origin, resolve},
    file::{self, File},
};
use leasehold::{
    agent::{
        model::{
            limited::ModelLimits,
            provider::{needs_base_url, providers},
        },
        policy::DataClass,
        registry::Price,
    },
    limits,
};
use std::{collections::HashMap, num::NonZeroU32, time::Duration};
use toml::Spanned;

/// Tokens of the smallest window that is believed.
const WINDOW_MIN: u64 = 1_000;

/// The provider that plays a script.
const SCRIPTED: &str = "scripted";

/// Providers that are used without a configuration when their key is in the environment, in this order.
const KNOWN_KEYS: [(&str, &str, &str); 3] = [
    ("OPENAI_API_KEY", "openai", "gpt-4o-mini"),
    ("ANTHROPIC_API_KEY", "anthropic", "claude-haiku-4-5"),
    ("GEMINI_API_KEY", "gemini", "gemini-2.5-flash"),
];

/// The models that are asked for one reply, in order, each once: this one, then each of its fallbacks followed by its own. Empty where
/// there is none of this name.
pub(crate) fn in_turn<'a>(models: &'a [Model], name: &str) -> Vec<&'a Model> {
    let mut turn: Vec<&Model> = Vec::new();
    let mut next = vec![name];
    while let Some(name) = next.pop() {
        if turn.iter().any(|m| m.name == name) {
            continue;
        }
        if let Some(model) = models.iter().find(|m| m.name == name) {
            turn.push(model);
            next.extend(model.fallback.iter().rev().map(String::as_str));
        }
    }
    turn
}

impl Checker<'_> {
    pub(super) fn models(&self, file: &File) -> Result<Vec<Model>, ConfigError> {
        if file.model.is_empty() {
            return Ok(vec![self.automatic_model()]);
        }
        let mut seen = HashMap::new();
        let mut models = Vec::new();
        for spanned in &file.model {
            let model = spanned.get_ref();
            self.unique("models", &model.name, &mut seen)?;
            models.push(self.model(spanned)?);
        }
        for spanned in &file.model {
            self.fallbacks(spanned.get_ref(), &models)?;
        }
        Ok(models)
    }

    fn automatic_model(&self) -> Model {
        let known = KNOWN_KEYS.into_iter().find(|(key, ..)| (self.env)(key).is_some_and(|value| !value.trim().is_empty()));
        let (kind, origin) = match known {
            Some((key, provider, model)) => {
                let kind = ModelKind::Provider {
                    provider: provider.into(),
                    model: model.into(),
                    base_url: None,
                    api_key_env: Some(key.into()),
                    timeout: Duration::from_secs(120),
                    stream: true,
                };
                (kind, Origin::Env(key.into()))
            }
            None => (ModelKind::Scripted { script: None }, Origin::Default),
        };
        let (fallback, limits) = (Vec::new(), ModelLimits::default());
        Model {
            name: DEFAULT_MODEL.into(),
            kind,
            price: None,
            window: None,
            zone: DataClass::default(),
            fallback,
            limits,
            origin,
        }
    }

    fn model(&self, spanned: &Spanned<file::Model>) -> Result<Model, ConfigError> {
        let model = spanned.get_ref();
        let provider = model.provider.get_ref().as_str();
        let known: Vec<&str> = providers().chain([SCRIPTED]).collect();
        if !known.contains(&provider) {
            let mend = suggest(provider, &known);
            return Err(self
                .error(&model.provider, format!("there is no provider `{provider}`"))
                .mend(format!("{mend} (openai with base_url for others that speak its protocol)")));
        }
        let kind = if provider == SCRIPTED {
            for (key, given) in [
                ("model", model.model.as_ref()),
                ("base_url", model.base_url.as_ref()),
                ("api_key_env", model.api_key_env.as_ref()),
            ] {
                if let Some(at) = given {
                    return Err(self.error(at, format!("`{key}` has no meaning for a scripted model")).mend("remove it"));
                }
            }
            let Some(script) = &model.script else {
                return Err(self
                    .error(&model.provider, "a scripted model needs the file of its script")
                    .mend("add: script = \"demo.toml\""));
            };
            ModelKind::Scripted { script: Some(resolve(&self.base(), script.get_ref())) }
        } else {
            if let Some(at) = &model.script {
                return Err(self
                    .error(at, format!("`script` has no meaning for provider \"{}\"", provider))
                    .mend("remove it, or use provider = \"scripted\""));
            }
            let Some(id) = &model.model else {
                return Err(self
                    .error(&model.provider, "which of the provider's models is meant?")
                    .mend("add: model = \"..\", the provider's name of it"));
            };
            if let Some(at) = &model.base_url
                && !["http://", "https://"].iter().any(|scheme| at.get_ref().starts_with(scheme))
            {
                return Err(self.error(at, format!("`{}` is not an http or https URL", at.get_ref())));
            }
            if needs_base_url(provider) && model.base_url.is_none() {
                return Err(self
                    .error(
                        &model.provider,
                        format!("where is the resource? The provider `{provider}` has no address of its own"),
                    )
                    .mend("add: base_url = \"https://RESOURCE.openai.azure.com/openai/v1/\""));
            }
            if let Some(at) = &model.api_key_env
                && !is_env_name(at.get_ref())
            {
                // What stands there may be the key itself: it is not repeated.
                return Err(self.error(at, "this is not the name of an environment variable").mend(
                    "write the name of the variable that holds the key, never the key: api_key_env = \"OPENAI_API_KEY\"",
                ));
            }
            ModelKind::Provider {
                provider: provider.to_owned(),
                model: id.get_ref().clone(),
                base_url: model.base_url.as_ref().map(|s| s.get_ref().clone()),
                api_key_env: model.api_key_env.as_ref().map(|s| s.get_ref().clone()),
                timeout: match &model.timeout {
                    Some(at) if at.get_ref().0.is_zero() => return Err(self.error(at, "must be longer than zero")),
                    Some(at) => at.get_ref().0,
                    None => Duration::from_secs(120),
                },
                stream: model.stream.unwrap_or(true),
            }
        };
        let price = match &model.price {
            None => None,
            Some(at) => {
                let file::Price { input, output, cached } = *at.get_ref();
                let price = Price { input, output, cached: cached.unwrap_or(input) };
                if [price.input, price.output, price.cached].iter().any(|p| !p.is_finite() || *p < 0.0) {
                    return Err(self.error(at, "a price is a number that is not negative, in US dollars per million tokens"));
                }
                Some(price)
            }
        };
        let at_least_one = |key: &Option<Spanned<u32>>| match key {
            None => Ok(None),
            Some(at) => NonZeroU32::new(*at.get_ref())
                .map(Some)
                .ok_or_else(|| self.error(at, "must be at least 1").mend("remove it for no limit")),
        };
        Ok(Model {
            name: model.name.get_ref().clone(),
            kind,
            price,
            window: match &model.window {
                Some(at) if *at.get_ref() < WINDOW_MIN => {
                    return Err(self
                        .error(at, format!("a window has at least {WINDOW_MIN} tokens"))
                        .mend("remove it where it is not known"));
                }
                window => window.as_ref().map(|at| *at.get_ref()),
            },
            zone: model.zone,
            fallback: model.fallback.iter().map(|name| name.get_ref().clone()).collect(),
            limits: ModelLimits {
                max_concurrency: at_least_one(&model.max_concurrency)?,
                requests_per_minute: at_least_one(&model.requests_per_minute)?,
            },
            origin: Origin::File(self.place(spanned)),
        })
    }

    fn fallbacks(&self, model: &file::Model, models: &[Model]) -> Result<(), ConfigError> {
        let name = model.name.get_ref();
        for at in &model.fallback {
            let other = at.get_ref();
            let turn = in_turn(models, other);
            if turn.is_empty() {
                let names: Vec<&str> = models.iter().map(|m| m.name.as_str()).collect();
                return Err(self
                    .error(at, format!("model `{name}` falls back to `{other}`, which is not there"))
                    .mend(suggest(other, &names)));
            }
            if turn.iter().any(|m| m.name == *name) {
                return Err(self
                    .error(at, format!("model `{name}` falls back to itself, by way of `{other}`"))
                    .mend("take it out of one of the lists"));
            }
        }
        let asked = in_turn(models, name).len();
        if let Some(at) = model.fallback.first().filter(|_| asked > limits::MODELS_IN_TURN_MAX) {
            let most = limits::MODELS_IN_TURN_MAX;
            return Err(self
                .error(at, format!("{asked} models in turn for one reply; {most} is the most"))
                .mend("the fallbacks of a fallback count"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    /// Three lines for each, and a fourth for each that has more to say.
    fn models(said: &[(&str, &str)]) -> String {
        let model = |(name, more): &(&str, &str)| {
            format!("[[model]]\nname = \"{name}\"\nprovider = \"ollama\"\nmodel = \"x\"\n{more}\n")
        };
        said.iter().map(model).collect::<String>() + "[[agent]]\nname = \"g\"\nmodel = \"a\"\n"
    }

    fn turn(said: &[(&str, &str)]) -> Vec<String> {
        in_turn(&read(&models(said)).unwrap().models, "a").iter().map(|m| m.name.clone()).collect()
    }

    #[test]
    fn fallbacks_are_asked_in_order_with_their_own_after_them_and_each_once() {
        assert_eq!(turn(&[("a", "")]), ["a"]);
        assert_eq!(
            turn(&[("a", "fallback = [\"b\", \"c\"]"), ("b", "fallback = [\"d\"]"), ("c", ""), ("d", "")]),
            ["a", "b", "d", "c"]
        );
        let diamond = [("a", "fallback = [\"b\", \"c\"]"), ("b", "fallback = [\"d\"]"), ("c", "fallback = [\"d\"]"), ("d", "")];
        assert_eq!(turn(&diamond), ["a", "b", "d", "c"]);
    }

    #[test]
    fn a_fallback_that_is_not_there_or_leads_back_is_named_with_its_line() {
        let gone = wrong(&models(&[("a", "fallback = [\"bee\"]"), ("bees", "")]));
        assert!(gone.starts_with("/etc/lh/leasehold.toml:5: model `a` falls back to `bee`, which is not there"), "{gone}");
        assert!(gone.contains("did you mean `bees`?"), "{gone}");
        let itself = wrong(&models(&[("a", "fallback = [\"a\"]")]));
        assert!(itself.starts_with("/etc/lh/leasehold.toml:5: model `a` falls back to itself"), "{itself}");
        let circle = [("a", ""), ("b", "fallback = [\"c\"]"), ("c", "fallback = [\"d\"]"), ("d", "fallback = [\"b\"]")];
        let circle = wrong(&models(&circle));
        assert!(circle.starts_with("/etc/lh/leasehold.toml:10: model `b` falls back to itself, by way of `c`"), "{circle}");
    }

    #[test]
    fn so_many_models_may_be_asked_for_one_reply_and_no_more() {
        let names: Vec<String> = (1..=limits::MODELS_IN_TURN_MAX).map(|n| format!("m{n}")).collect();
        let list = |names: &[String]| {
            format!("fallback = [{}]", names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", "))
        };
        let most = list(&names[1..]);
        let said = |first: &str| {
            let mut said = vec![("a", first)];
            said.extend(names.iter().map(|name| (name.as_str(), "")));
            models(&said)
        };
        assert_eq!(in_turn(&read(&said(&most)).unwrap().models, "a").len(), limits::MODELS_IN_TURN_MAX);
        let error = wrong(&said(&list(&names)));
        assert!(error.starts_with("/etc/lh/leasehold.toml:5: 9 models in turn for one reply; 8 is the most"), "{error}");
    }

    #[test]
    fn limits_are_at_least_one_and_reach_the_model() {
        let both = read(&models(&[("a", "max_concurrency = 4\nrequests_per_minute = 60")])).unwrap();
        let expected = ModelLimits { max_concurrency: NonZeroU32::new(4), requests_per_minute: NonZeroU32::new(60) };
        assert_eq!(both.models[0].limits, expected);
        for key in ["max_concurrency", "requests_per_minute"] {
            let error = wrong(&models(&[("a", &format!("{key} = 0"))]));
            assert!(error.starts_with("/etc/lh/leasehold.toml:5: must be at least 1"), "{error}");
        }
    }

    #[test]
    fn a_provider_that_is_none_is_told_with_those_there_are_and_one_without_an_address_needs_one() {
        let of = |provider: &str| format!("[[model]]\nname = \"m\"\nprovider = \"{provider}\"\nmodel = \"x\"\n");
        let error = wrong(&of("opanai"));
        assert!(error.starts_with("/etc/lh/leasehold.toml:3: there is no provider `opanai`"), "{error}");
        for provider in providers() {
            assert!(error.contains(provider), "{error}");
            assert_eq!(read(&of(provider)).is_ok(), provider != "azure", "{provider}");
        }
        let error = wrong(&of("azure"));
        assert!(error.starts_with("/etc/lh/leasehold.toml:3: where is the resource?") && error.contains("base_url"), "{error}");
        read(&(of("azure") + "base_url = \"https://x.openai.azure.com/openai/v1/\"\n")).unwrap();
    }

    #[test]
    fn a_cap_on_cost_counts_only_where_every_model_in_turn_has_a_price() {
        let text = "[[model]]\nname = \"a\"\nprovider = \"ollama\"\nmodel = \"x\"\nprice = { input = 1, output = 1 }\nfallback = [\"b\"]\n\
                    [[model]]\nname = \"b\"\nprovider = \"ollama\"\nmodel = \"x\"\n[[agent]]\nname = \"g\"\nmodel = \"a\"\nmax_cost = 1.0\n";
        let error = wrong(text);
        assert!(error.contains("has no price"), "{error}");
        read(&text.replace("name = \"b\"\n", "name = \"b\"\nprice = { input = 1, output = 1 }\n")).unwrap();
    }
}
