// Somebody serves a model by the form, sees why it is not ready yet, calls it with a token and from
// the playground, promotes a canary, and ends it. Every part of
// the service is accessible in both themes, in both languages and on a phone.
import assert from 'node:assert/strict';
import {
  checkAccessibility,
  expectNothingCut,
  journey,
  login,
  openPage,
  screenshot,
  settle,
  site,
} from './browser.mjs';

const tabs = ['overview', 'playground', 'replicas', 'revisions', 'scaling', 'tokens', 'usage', 'history'];

await journey(async (browser) => {
  const { page, expectNoFaults } = await openPage(browser, { expects: [/400 POST .*\/services\/_\/try/] });
  await login(page, site.user, '/services');
  await page.getByText('There are no model services yet').waitFor();

  // A trial tells at the field what is wrong.
  await page.goto(
    `/services/new?name=served&image=python&model=${site.model}&definition=absent.yaml&r=cpu%3D1,mem%3D256m`,
  );
  await page.getByRole('button', { name: 'Try it first' }).click();
  const definition = page.getByLabel('Model definition');
  await page.locator('input[aria-invalid=true]').waitFor();
  assert.equal(await definition.getAttribute('aria-invalid'), 'true');
  await screenshot(page, 'services-refused');

  await definition.fill('');
  await page.getByRole('button', { name: 'Create' }).click();
  await page.waitForURL(/\/services\/[0-9a-f-]{36}$/);
  const path = new URL(page.url()).pathname;
  await page.getByText('healthy', { exact: true }).first().waitFor();

  await page.getByRole('tab', { name: 'Tokens' }).click();
  await page.getByRole('button', { name: 'Make a token' }).click();
  const secret = (await page.getByRole('status').locator('pre').first().textContent()) ?? '';
  await page.goto(`/services?q=${encodeURIComponent('status == "healthy"')}&sort=user_email`);
  const row = page.getByRole('row').filter({ hasText: 'served' });
  assert.match((await row.textContent()) ?? '', /1 of 1 ready/);
  const url = /https?:\/\/[^\s]+?:\d+\/?/.exec((await row.textContent()) ?? '')?.[0] ?? '';
  const models = `${url.replace(/\/$/, '')}/v1/models`;
  assert.equal((await fetch(models)).status, 401);
  assert.equal((await fetch(models, { headers: { Authorization: `Bearer ${secret}` } })).status, 200);

  await page.goto(`${path}/tokens`);
  await page.getByRole('button', { name: 'Make a token' }).waitFor();
  assert.equal(await page.getByText(secret).count(), 0, 'a token is shown once');

  // The playground needs no token: an answer comes token by token, its script is text, and it ends when it is stopped.
  await page.goto(`${path}/playground`);
  await page.getByLabel('Message', { exact: true }).fill('hello');
  await page.getByRole('button', { name: 'Send', exact: true }).click();
  const turn = page.getByRole('article');
  await turn.getByText(/<img src=x onerror=window.__hacked=1>( and on){3,}/).waitFor();
  assert.match((await turn.textContent()) ?? '', /first token after .* s/);
  assert.deepEqual(await checkAccessibility(page, 'the playground'), []);
  await screenshot(page, 'services-playground');
  await page.getByRole('button', { name: 'Stop' }).click();
  await turn.getByText('stopped', { exact: true }).waitFor();
  assert.equal(await page.evaluate(() => window.__hacked), undefined);
  await page.goto(`${path}/playground?as=request`);
  await page.getByLabel('Path').fill('/open');
  for (let open = ''; open !== '{"open": 0}'; ) {
    await page.getByRole('button', { name: 'Send', exact: true }).click();
    await page.getByText('complete', { exact: true }).waitFor();
    open = (await page.getByRole('region', { name: 'Answer' }).last().textContent()) ?? '';
  }

  // A canary stays at its step until it is promoted.
  await page.goto(`${path}/revisions`);
  await page.getByRole('button', { name: 'Change the roll-out' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('New revisions come').selectOption('canary');
  await dialog.getByLabel('Steps of the canary').fill('20%');
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a roll-out'), []);
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByText('20 % until it is promoted').waitFor();
  await page.getByRole('button', { name: 'Change', exact: true }).click();
  await dialog.getByLabel('Environment').fill('A=1');
  await dialog.getByText('This rolls out a new revision.').waitFor();
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a change'), []);
  await screenshot(page, 'services-change');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByText('when you promote it').waitFor();
  await page.getByText('20 %', { exact: true }).waitFor();
  await screenshot(page, 'services-canary');
  await page.getByRole('button', { name: 'Promote' }).click();
  await dialog.getByRole('button', { name: 'Promote' }).click();
  await page.getByText('Nothing is being rolled out').waitFor();
  await page.getByText('100 %', { exact: true }).waitFor();

  // A rule begins autoscaling, and is told with what it does.
  await page.goto(`${path}/scaling`);
  await page.getByRole('button', { name: 'New rule' }).click();
  await dialog.getByLabel('Threshold').fill('800');
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a rule'), []);
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('cell', { name: 'Open and waiting requests greater than 800', exact: true }).waitFor();
  await page.getByRole('button', { name: 'Change autoscaling' }).click();
  await dialog.getByLabel('Replicas at most', { exact: true }).fill('1');
  assert.deepEqual(await checkAccessibility(page, 'the dialog of autoscaling'), []);
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByText('1 of 1 to 1').waitFor();
  await page.getByRole('button', { name: 'Send routes' }).click();
  await dialog.getByRole('button', { name: 'Send them' }).click();
  await dialog.waitFor({ state: 'detached' });

  const violations = [];
  for (const [scheme, width] of [
    ['light', 1280],
    ['dark', 360],
  ]) {
    const language = scheme === 'dark' ? 'ko-KR' : 'en-US';
    const other = await openPage(browser, { scheme, width, language });
    await login(other.page, site.user);
    for (const place of ['/services', '/services/new', ...tabs.map((tab) => `${path}/${tab}`)]) {
      await other.page.goto(place);
      await settle(other.page);
      const name = `${place.replace(path, 'service').replaceAll('/', '-').replace(/^-/, '')} ${scheme} ${width}`;
      violations.push(...(await checkAccessibility(other.page, name)));
      await screenshot(other.page, name.replaceAll(' ', '-'));
      await expectNothingCut(other.page, place, ...(width === 1280 ? [1024] : []));
    }
    other.expectNoFaults();
    await other.context.close();
  }
  assert.deepEqual(violations, []);

  await page.goto(path);
  await page.getByRole('button', { name: 'Destroy' }).click();
  await page.getByLabel('Type served to confirm').fill('served');
  await page.getByRole('dialog').getByRole('button', { name: 'Destroy' }).click();
  await page.getByText('destroyed', { exact: true }).first().waitFor();
  await page.getByRole('button', { name: 'Destroy' }).waitFor({ state: 'detached' });
  expectNoFaults();
});
