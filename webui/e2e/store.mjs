// A model from a registry to a session that reads it, by an administrator and a user; and a session from a template.
import assert from 'node:assert/strict';
import { checkAccessibility, journey, login, openPage, screenshot, settle, site } from './browser.mjs';

const inEveryLook = [
  ['light', 1280, 'en-US'],
  ['dark', 360, 'ko-KR'],
];

await journey(async (browser) => {
  const admin = await openPage(browser);
  await login(admin.page, site.admin, '/artifacts');
  await admin.page.getByText('There are no artifacts').waitFor();
  await admin.page.getByLabel('Name of the registry').fill('hub');
  await admin.page.getByLabel('Address').fill(site.hub);
  await admin.page.getByRole('button', { name: 'Add the registry' }).click();
  await admin.page.getByRole('button', { name: 'Scan hub' }).click();
  await admin.page.getByText('Scan finished').waitFor();
  await admin.page.getByRole('link', { name: 'acme/tiny' }).click();
  await admin.page.getByRole('button', { name: 'Import main', exact: true }).click();
  await admin.page.getByRole('link', { name: 'Use in a session: main' }).waitFor();
  await admin.page.getByRole('link', { name: 'Files of main' }).click();
  await admin.page.getByRole('cell', { name: 'model.safetensors', exact: true }).waitFor();
  const artifact = new URL(admin.page.url());
  await screenshot(admin.page, 'store-artifact');

  const { page, expectNoFaults } = await openPage(browser, { expects: [/^400 POST .*\/template\/session$/] });
  await login(page, site.user, '/artifacts?q=tiny');
  await page.getByRole('link', { name: 'acme/tiny' }).click();
  await page.getByRole('link', { name: 'Use in a session: main' }).click();
  await page.getByText('artifact:acme/tiny@main').first().waitFor();
  await page.goto(`/sessions/new?image=python&name=reader&r=cpu%3D1,mem%3D256m&mounts=artifact%3Aacme%2Ftiny%40main`);
  await page.getByText('Starts now').first().waitFor();
  await page.getByRole('button', { name: 'Launch' }).click();
  await page.waitForURL(/\/sessions\/[0-9a-f-]{36}/);
  await page.getByText('RUNNING', { exact: true }).first().waitFor();
  await page.goto(`${page.url().replace(/([0-9a-f-]{36}).*/, '$1')}/cells`);
  const cell = page.getByRole('textbox', { name: 'Code of cell 1' });
  await cell.fill('print(open("tiny/config.json").read())');
  await cell.press('Shift+Enter');
  await page.getByText('{"hidden_size": 8}').waitFor();

  await page.goto('/templates?show=new');
  const text = page.getByLabel('Text of the template');
  const sample = await text.inputValue();
  await text.fill(sample.replace('image: python', 'imagee: python'));
  await page.getByRole('button', { name: 'Create the template' }).click();
  await page.getByText(/spec\.kernel/).waitFor(); // says where, and keeps the text
  await screenshot(page, 'store-template-refused');
  await text.fill(sample.replace('512m', '256m'));
  await page.getByRole('button', { name: 'Create the template' }).click();
  await page.getByRole('button', { name: 'Start a session from my-template', exact: true }).click();
  await page.waitForURL(/\/sessions\/[0-9a-f-]{36}/);
  await page.getByText('RUNNING', { exact: true }).first().waitFor();
  expectNoFaults();

  const violations = [];
  for (const [scheme, width, language] of inEveryLook) {
    const other = await openPage(browser, { scheme, width, language });
    await login(other.page, site.admin);
    for (const path of [
      '/artifacts',
      `${artifact.pathname}${artifact.search}`,
      '/templates?all=true',
      '/templates?show=new',
    ]) {
      await other.page.goto(path);
      await settle(other.page);
      const name = `store${path.replaceAll(/[0-9a-f-]{36}/g, 'one').replaceAll(/[^a-z]+/g, '-')} ${scheme} ${width}`;
      violations.push(...(await checkAccessibility(other.page, name)));
      await screenshot(other.page, name.replaceAll(' ', '-'));
      const overflow = await other.page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(overflow <= 0, `${path} is ${overflow} pixels too wide at ${width}`);
    }
    other.expectNoFaults();
    await other.context.close();
  }
  assert.deepEqual(violations, []);
  admin.expectNoFaults();
});
