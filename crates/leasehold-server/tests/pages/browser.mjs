// The pages in a real browser. Arguments: the folders of playwright-core and axe-core, the browser, and the place as JSON: the server's
// url, a token, the runs, a folder for screenshots or null. Ends with 0 where everything held.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { mkdirSync, readFileSync } from 'node:fs';

const [playwright, axe, executablePath, place] = process.argv.slice(2);
const { url, token, runs, screens } = JSON.parse(place);
const { chromium } = createRequire(`${playwright}/`)('playwright-core');
const auditor = readFileSync(`${axe}/node_modules/axe-core/axe.min.js`, 'utf8');

const browser = await chromium.launch({
  executablePath,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const said = [];
const expected = /status of (401|403|404|409|422)/;

async function context(options = {}) {
  const made = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  made.setDefaultTimeout(15_000);
  made.on('console', (message) => {
    if (!expected.test(message.text())) said.push(`${message.type()}: ${message.text()} (${message.page()?.url()})`);
  });
  made.on('weberror', (error) => said.push(`error: ${error.error()}`));
  made.on('request', (request) => {
    if (!request.url().startsWith(url)) said.push(`request to ${request.url()}`);
  });
  return made;
}

async function entered(options) {
  const made = await context(options);
  const page = await made.newPage();
  const answer = await page.goto(`${url}/`);
  assert.match(page.url(), /\/login$/);
  const policy = answer.headers()['content-security-policy'];
  assert.ok(policy.startsWith("default-src 'none'") && !policy.includes('unsafe'), policy);
  await page.getByLabel('Token', { exact: true }).fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { level: 1, name: 'Inbox' }).waitFor();
  return page;
}

async function api(path) {
  const answer = await fetch(`${url}/api/v1${path}`, { headers: { authorization: `Bearer ${token}` } });
  return answer.json();
}

async function state(run, wanted) {
  for (const since = Date.now(); ; ) {
    const now = await api(`/runs/${run}`);
    if (now.state === wanted) return now;
    assert.ok(Date.now() - since < 20_000, `${run} is ${now.state}, not ${wanted}`);
    await new Promise((after) => setTimeout(after, 50));
  }
}

const card = (page, text) => page.locator('details.card').filter({ hasText: text });
async function opened(page, run) {
  const answer = await page.goto(`${url}/runs/${run}`);
  const policy = answer.headers()['content-security-policy'];
  assert.ok(policy && !policy.includes('unsafe'), policy);
}

async function audited(page, name) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    for (const details of await page.locator('details:not([open]) > summary').all()) {
      if (await details.isVisible()) await details.click();
    }
    await page.evaluate(auditor);
    const { violations } = await page.evaluate('axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })');
    const told = violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(' | ')}`);
    assert.deepEqual(told, [], `${name} in ${colorScheme}`);
  }
  await page.emulateMedia({ colorScheme: 'light' });
}

async function pictured(page, name, path) {
  if (!screens) return;
  mkdirSync(screens, { recursive: true });
  for (const [look, colorScheme, width, height] of [['light', 'light', 1440, 900], ['dark', 'dark', 1440, 900], ['phone', 'light', 390, 844]]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height });
    if (path) await page.goto(`${url}${path}`);
    assert.ok(await page.evaluate('document.documentElement.scrollWidth <= window.innerWidth'), `${name} scrolls sideways at ${width}`);
    await page.screenshot({ path: `${screens}/${name}-${look}.png` });
    await page.screenshot({ path: `${screens}/${name}-${look}-whole.png`, fullPage: true });
  }
  await page.emulateMedia({ colorScheme: 'light' });
  await page.setViewportSize({ width: 1440, height: 900 });
}

const steps = {
  async 'every page is signed in to, has no violation and no foreign request'() {
    const outside = await (await context()).newPage();
    await outside.goto(`${url}/login`);
    await audited(outside, 'login');
    await pictured(outside, 'login', '/login');
    const page = await entered();
    assert.match(await page.title(), /^\(\d+\) Inbox/);
    const pages = { inbox: '/', runs: '/runs', 'none-like-that': '/runs?agent=nobody', approve: `/runs/${runs.preview}`, input: `/runs/${runs.asks}`,
      doubt: `/runs/${runs.doubt}`, dead: `/runs/${runs.dead}`, evil: `/runs/${runs.evil}`, 'empty-kind': '/?kind=duplicate', nothing: '/nothing' };
    for (const [name, path] of Object.entries(pages)) {
      await pictured(page, name, path);
      await page.goto(`${url}${path}`);
      await audited(page, name);
    }
  },

  async 'a write is approved in the inbox and lands'() {
    const page = await entered();
    const waits = card(page, 'clerk wants to').first();
    const run = (await waits.locator('form').first().getAttribute('action')).split('/')[2];
    if (!(await waits.evaluate((is) => is.open))) await waits.locator('summary').first().click();
    await waits.getByRole('button', { name: 'Approve it as asked' }).click();
    await page.getByText('Approved. The decision is on record.').waitFor();
    await state(run, 'completed');
    await page.locator('.flash a').click();
    await page.getByText('landed', { exact: false }).first().waitFor();
    await page.getByText('entries, unbroken').waitFor();
    await pictured(page, 'run', new URL(page.url()).pathname);
    await audited(page, 'run');
    await page.reload();
    assert.equal(await page.locator('.flash').count(), 0, 'it is said once');
  },

  async 'a write is denied with a reason, which the agent reads'() {
    const page = await entered();
    await opened(page, runs.deny);
    await page.getByText('Deny it…').click();
    await page.getByLabel('Why not?').last().fill('no <b>markup</b> here');
    await page.getByRole('button', { name: 'Deny it', exact: true }).click();
    await page.getByText('Denied. Nothing of it runs').waitFor();
    const { decisions } = await state(runs.deny, 'completed');
    assert.equal(decisions[0].reason, 'no <b>markup</b> here');
    await page.reload();
    await page.getByText('no <b>markup</b> here').first().waitFor();
  },

  async 'arguments are edited: what does not fit is said, what does is sent'() {
    const page = await entered();
    await opened(page, runs.edit);
    await page.getByRole('radio', { name: 'Edit' }).check();
    await page.getByRole('button', { name: 'Send marks' }).last().click();
    await page.getByText('nothing is changed').first().waitFor();
    assert.ok(await page.getByRole('radio', { name: 'Edit' }).isChecked(), 'the mark is kept');
    await page.getByLabel('text').fill('hello, edited\nin two lines');
    await page.getByRole('button', { name: 'Send marks' }).last().click();
    await page.getByText('Approved. The decision is on record.').waitFor();
    await state(runs.edit, 'completed');
  },

  async 'a form with mistakes comes back with them in place and everything kept'() {
    const page = await entered();
    await opened(page, runs.asks);
    await page.getByLabel('Guests').fill('0');
    await page.getByLabel('When').fill('2026-12-24');
    await page.getByLabel('Mail').fill('nobody');
    await page.getByLabel('Words').fill('see you\nthere');
    await page.getByLabel('Table').selectOption({ label: 'window' });
    await page.getByLabel('cake').check();
    await page.getByRole('radio', { name: 'yes' }).check();
    await page.getByLabel('Town').fill('Kiel');
    await page.getByRole('button', { name: 'Send answers' }).click();
    await page.getByRole('heading', { level: 1, name: 'Nothing was sent' }).waitFor();
    await audited(page, 'mistakes');
    await pictured(page, 'mistakes');
    for (const field of ['Guests', 'Mail']) assert.equal(await page.getByLabel(field).getAttribute('aria-invalid'), 'true', field);
    assert.equal(await page.getByLabel('Words').inputValue(), 'see you\nthere');
    assert.equal(await page.getByLabel('When').inputValue(), '2026-12-24');
    assert.equal(await page.getByLabel('Town').inputValue(), 'Kiel');
    assert.ok((await page.getByLabel('cake').isChecked()) && (await page.getByRole('radio', { name: 'yes' }).isChecked()));
    await page.getByRole('alert').getByRole('link').first().click();
    assert.equal(await page.evaluate('document.activeElement === document.querySelector(":target")'), true, 'the link leads to the field');
    assert.equal((await api(`/runs/${runs.asks}`)).state, 'waiting_for_input');
    await page.getByLabel('Guests').fill('4');
    await page.getByLabel('Mail').fill('a@example.org');
    await page.getByRole('button', { name: 'Send answers' }).click();
    await page.getByText('Your answers are on record.').waitFor();
    const { decisions } = await state(runs.asks, 'completed');
    assert.deepEqual(decisions.find((made) => made.values)?.values, {
      guests: 4, day: '2026-12-24', mail: 'a@example.org', words: 'see you\nthere', table: 'w', extras: ['cake'], sure: true, address: { town: 'Kiel' },
    });
  },

  async 'a write in doubt after a kill is settled'() {
    const page = await entered();
    await page.goto(`${url}/?kind=in_doubt`);
    await page.getByText('may have happened').first().waitFor();
    await page.getByRole('radio', { name: 'It landed' }).check();
    await page.getByLabel('Result that the agent should see').fill('{"line": 7}');
    await page.getByLabel('Note').fill('seen in the ledger');
    await page.getByRole('button', { name: 'Settle this write' }).click();
    await page.getByText('Settled: it landed.').waitFor();
    await state(runs.doubt, 'completed');
  },

  async 'of two tabs the stale one is refused with what stands now'() {
    const page = await entered();
    const other = await page.context().newPage();
    await opened(page, runs.two);
    await opened(other, runs.two);
    await page.getByRole('radio', { name: 'Approve' }).check();
    await page.getByRole('button', { name: 'Send marks' }).last().click();
    await page.getByText('Approved. The decision is on record.').waitFor();
    for (let digest; digest !== 2; ) digest = (await api(`/runs/${runs.two}`)).waiting?.calls[0].arguments.text === 'second' ? 2 : 1;
    await other.getByText('Deny it…').click();
    await other.getByLabel('Why not?').last().fill('I typed this');
    const [answer] = await Promise.all([other.waitForResponse((r) => r.request().method() === 'POST'), other.getByRole('button', { name: 'Deny it', exact: true }).click()]);
    assert.equal(answer.status(), 409);
    await other.getByText('Your click changed nothing.').waitFor();
    await other.getByText('I typed this').waitFor();
    await other.getByText('second').first().waitFor();
    await pictured(other, 'stale');
    await audited(other, 'stale');
    await other.getByText('Back', { exact: true }).click();
    assert.equal((await api(`/runs/${runs.two}`)).decisions.length, 1);
    await other.getByRole('button', { name: 'Approve it as asked' }).click();
    await state(runs.two, 'completed');
  },

  async 'some calls of a turn are approved and others denied without scripts'() {
    const page = await entered({ javaScriptEnabled: false });
    await page.getByText('wait for a person').waitFor();
    await opened(page, runs.some);
    const calls = page.locator('.call[role=group]');
    await calls.nth(0).getByRole('radio', { name: 'Approve' }).check();
    await calls.nth(1).getByRole('radio', { name: 'Deny' }).check();
    await calls.nth(1).getByLabel('Why not?').fill('once is enough');
    await page.getByRole('button', { name: 'Send marks' }).last().click();
    await page.getByText('Your decisions are on record.').waitFor();
    const { decisions } = await state(runs.some, 'completed');
    assert.deepEqual(decisions.map((made) => [made.decision, made.reason]), [['approve', null], ['deny', 'once is enough']]);
    await page.goto(`${url}/?kind=dead`);
    await page.getByLabel('Note').fill('over');
    await page.getByRole('button', { name: 'Discard' }).click();
    await page.getByText('Discarded. The run is over.').waitFor();
    await state(runs.dead, 'cancelled');
  },

  async 'what others wrote is text'() {
    const page = await entered();
    await opened(page, runs.evil);
    for (const _ of [1, 2]) {
      await page.goto(_ === 1 ? `${url}/runs/${runs.evil}` : `${url}/`);
      assert.equal(await page.locator('main script, main img, main b#evil').count(), 0);
      const text = await page.evaluate('document.body.textContent');
      assert.equal(text.match(/.{0,40}[\u202e\u200b\u0007].{0,40}/)?.[0], undefined);
      for (const shown of ['\\u{202e}', '\\u{200b}', '<script>']) assert.ok(text.includes(shown), `${shown} in ${page.url()}`);
      assert.notEqual(await page.title(), 'owned');
    }
    await opened(page, runs.evil);
    await page.getByRole('radio', { name: 'Approve' }).check();
    await page.getByRole('button', { name: 'Send marks' }).last().click();
    await state(runs.evil, 'completed');
    await opened(page, runs.told);
    assert.ok((await page.evaluate('document.body.textContent')).includes('<img src=x onerror=alert(1)>\\u{202e} from the far side'));
    assert.equal(await page.locator('main script, main img').count(), 0);
  },

  async 'runs are filtered, found by the end of their id, and paged through'() {
    const page = await entered();
    await page.getByRole('link', { name: 'Runs', exact: true }).click();
    await page.getByLabel('State').selectOption('completed');
    await page.getByRole('button', { name: 'Filter' }).click();
    assert.ok((await page.locator('tbody tr').count()) > 2);
    assert.equal(await page.locator('tbody .chip:not([data-state=completed])').count(), 0);
    await page.getByLabel('Id, or its end').fill(runs.evil.slice(-8));
    await page.getByRole('button', { name: 'Filter' }).click();
    assert.equal(new URL(page.url()).pathname, `/runs/${runs.evil}`);
    await page.goto(`${url}/runs?q=ffffffffffff`);
    await page.getByText('No single run of yours').waitFor();
    await page.goto(`${url}/runs`);
    await page.getByRole('link', { name: 'Older' }).click();
    await page.locator('tbody tr').first().waitFor();
  },

  async 'signing out ends it'() {
    const page = await entered();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { level: 1, name: 'Sign in' }).waitFor();
    await page.goto(`${url}/runs`);
    assert.match(page.url(), /\/login\?next=/);
  },
};

let failed = 0;
for (const [name, step] of Object.entries(steps)) {
  const since = Date.now();
  try {
    await step();
    console.log(`held: ${name} (${Date.now() - since} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`failed: ${name}: ${error.stack}`);
  }
  for (const made of browser.contexts()) await made.close();
}
assert.deepEqual(said, [], 'the console is clean and nothing is asked elsewhere');
await browser.close();
process.exitCode = failed > 0 ? 1 : 0;
