// An authorization server of the tests: `oidc-provider` as it is, with dynamic registration, PKCE, resource indicators and refresh
// tokens that are rotated, of which one that comes twice ends all of its grant. Whoever comes with a browser is logged in at once.
// `provider.mjs FOLDER TTL LOG PORT`: FOLDER has node_modules, TTL is the seconds an access token lasts, LOG gets a line for each token
// request, and LOG.tokens what was given. What the tests want of it is put before it as files beside LOG.
import { appendFileSync, existsSync, renameSync, writeFileSync } from 'node:fs';
import { createHash } from 'node:crypto';
import { pathToFileURL } from 'node:url';

const [folder, ttl, log, port] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`));

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: 'machine', client_secret: 'machine-secret-of-the-tests', grant_types: ['client_credentials'], response_types: [],
      redirect_uris: [], token_endpoint_auth_method: 'client_secret_basic',
    },
  ],
  cookies: { keys: ['tests'] },
  clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post'],
  scopes: ['openid', 'offline_access', 'write'],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource) => ({
        scope: 'write', audience: resource, accessTokenFormat: 'jwt', accessTokenTTL: Number(ttl), jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  pkce: { required: () => true },
  rotateRefreshToken: true,
  issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (ctx, interaction) => `/come-in/${interaction.uid}` },
  ttl: { AccessToken: Number(ttl), ClientCredentials: Number(ttl), RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600 },
});

// A file that is there once is used once.
const asked = (name) => {
  const file = `${log}.${name}`;
  if (!existsSync(file)) return false;
  renameSync(file, `${file}.done`);
  return true;
};

provider.use(async (ctx, next) => {
  if (ctx.path.startsWith('/come-in/')) {
    const details = await provider.interactionDetails(ctx.req, ctx.res);
    const grant = new provider.Grant({ accountId: 'ada', clientId: details.params.client_id });
    grant.addOIDCScope('openid offline_access write');
    grant.addResourceScope(details.params.resource, 'write');
    const result = asked('deny')
      ? { error: 'access_denied', error_description: 'not today' }
      : { login: { accountId: 'ada' }, consent: { grantId: await grant.save() } };
    return provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: false });
  }
  await next();
  if (ctx.path === '/token') {
    const { grant_type, refresh_token, resource: wanted } = ctx.oidc?.params ?? {};
    const shown = refresh_token ? createHash('sha256').update(refresh_token).digest('hex').slice(0, 16) : '-';
    appendFileSync(log, `${grant_type} ${shown} ${ctx.status} ${ctx.body?.error ?? '-'} ${wanted ?? '-'}\n`);
    for (const given of [ctx.body?.access_token, ctx.body?.refresh_token]) {
      if (given) appendFileSync(`${log}.tokens`, `${given} ${ctx.oidc.client.clientId}\n`);
    }
    // What it gave is given, and nobody hears of it.
    if (grant_type === 'refresh_token' && asked('hold')) await new Promise(() => {});
  }
});

provider.on('server_error', (ctx, error) => writeFileSync(`${log}.error`, String(error.stack)));
provider.on('grant.error', (ctx, error) => writeFileSync(`${log}.grant-error`, String(error.stack)));
provider.listen(Number(port), '127.0.0.1');
