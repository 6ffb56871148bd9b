// A person from the first login to the last: made by an administrator, secured by one-time passwords, purged.
import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { checkAccessibility, journey, login, openPage, screenshot, site } from './browser.mjs';

const person = { email: 'newcomer@example.com', password: 'the second password' };

/** Returns the one-time password of now (RFC 6238) for a key in base 32. */
function oneTimePassword(key) {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567';
  const bits = [...key].map((letter) => letters.indexOf(letter).toString(2).padStart(5, '0')).join('');
  const bytes = Buffer.from(bits.match(/.{8}/g).map((byte) => Number.parseInt(byte, 2)));
  const step = Buffer.alloc(8);
  step.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30_000)));
  const digest = createHmac('sha1', bytes).update(step).digest();
  const number = digest.readUInt32BE(digest[19] & 15) & 0x7fffffff;
  return String(number % 1_000_000).padStart(6, '0');
}

await journey(async (browser) => {
  const admin = await openPage(browser);
  await login(admin.page, site.admin, '/people/new');
  await admin.page.getByRole('heading', { level: 1, name: 'New user' }).waitFor();
  await admin.page.getByLabel('E-mail address').fill(person.email);
  await admin.page.getByLabel('First password', { exact: true }).fill('short');
  await admin.page.getByRole('button', { name: 'Create the user' }).click();
  await admin.page.getByText('A password has 8 characters or more.').waitFor();
  await screenshot(admin.page, 'people-new-refused');
  await admin.page.getByLabel('First password', { exact: true }).fill('the first password');
  await admin.page.getByRole('button', { name: 'Create the user' }).click();
  await admin.page.getByText(person.email).first().waitFor();

  const { page, context, expectNoFaults } = await openPage(browser, { expects: [/^401 /] });
  await page.goto('/account');
  await page.getByLabel('E-mail address').fill(person.email);
  await page.getByLabel('Password', { exact: true }).fill('the first password');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByLabel('New password', { exact: true }).fill(person.password);
  await page.getByRole('button', { name: 'Log in' }).click();

  await page.getByRole('button', { name: 'Set up one-time passwords' }).click();
  const key = (
    await page
      .locator('pre')
      .filter({ hasText: /^[A-Z2-7 ]+$/ })
      .innerText()
  ).replaceAll(' ', '');
  await screenshot(page, 'account-totp-enrolment');
  await page.getByLabel('One-time password', { exact: true }).fill(oneTimePassword(key));
  await page.getByRole('button', { name: 'Confirm' }).click();
  const codes = (
    await page
      .locator('pre')
      .filter({ hasText: /^[A-Z2-7]{4}-/ })
      .innerText()
  ).split('\n');
  await screenshot(page, 'account-totp-codes');
  assert.equal(codes.length, 10);
  assert.deepEqual(await checkAccessibility(page, 'account with recovery codes'), []);
  await page.getByRole('button', { name: 'I have kept them' }).click();
  await page.getByText('10 recovery codes are left.').waitFor();

  await context.clearCookies();
  await page.goto('/account');
  await page.getByLabel('E-mail address').fill(person.email);
  await page.getByLabel('Password', { exact: true }).fill(person.password);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByLabel('One-time password', { exact: true }).fill(codes[0]);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByText('9 recovery codes are left.').waitFor();
  await page.getByText('this browser').waitFor();
  await page
    .getByRole('button', { name: /^End: Chrome/ })
    .first()
    .click(); // whose cookie was thrown away
  await page.getByRole('dialog').getByRole('button', { name: 'End', exact: true }).click();
  await page.getByRole('button', { name: /^End: Chrome/ }).waitFor({ state: 'detached' });
  await screenshot(page, 'account-logins');
  await page.getByRole('button', { name: 'Make a new secret' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Make a new secret' }).click();
  await page.getByText('The new secret is shown only now.').waitFor();
  await screenshot(page, 'account-rotated');
  expectNoFaults();
  await context.close();

  // The administrator makes the person one of the project, whom the person then finds among its members.
  await admin.page.goto('/people?tab=groups');
  await admin.page.getByRole('link', { name: 'default', exact: true }).click();
  await admin.page.getByRole('button', { name: `Make administrator: ${person.email}` }).click();
  await admin.page.getByRole('dialog').getByRole('button', { name: 'Make administrator' }).click();
  await admin.page.getByRole('button', { name: `Make plain member: ${person.email}` }).waitFor();
  await screenshot(admin.page, 'project-members');
  await admin.page.getByRole('button', { name: `Remove ${person.email}` }).click();
  await admin.page.getByText('The part of an administrator.').waitFor();
  await screenshot(admin.page, 'project-removal');
  assert.deepEqual(await checkAccessibility(admin.page, 'the removal of a member'), []);
  await admin.page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();

  // The next change is refused once for the lack of a proof, as where a site demands one.
  let isRefused = false;
  await admin.page.route('**/func/admin/gql', async (route) => {
    if (isRefused || !route.request().postData()?.includes('modify_user')) return route.fallback();
    isRefused = true;
    const problem = { type: 'https://api.backend.ai/probs/proof-required', status: 403, data: { proof: 'required' } };
    const data = { modify_user: { ok: false, msg: 'Prove again that it is you.' } };
    return route.fulfill({ json: { data, extensions: { problems: { modify_user: problem } } } });
  });
  await admin.page.goto(`/people?q=${person.email}`);
  await admin.page.getByRole('button', { name: `Deactivate ${person.email}` }).click();
  await admin.page.getByRole('dialog').getByRole('button', { name: 'Deactivate' }).click();
  await admin.page.getByRole('button', { name: 'Go on' }).waitFor();
  await screenshot(admin.page, 'proof');
  assert.deepEqual(await checkAccessibility(admin.page, 'the question for a proof'), []);
  await admin.page.locator('input[autocomplete=current-password]').fill(site.admin.password);
  await admin.page.getByRole('button', { name: 'Go on' }).click();
  await admin.page.getByRole('button', { name: `Activate ${person.email}` }).waitFor();

  await admin.page.goto(`/people?q=${person.email}`);
  const act = async (name) => {
    await admin.page.getByRole('button', { name: `More actions: ${person.email}` }).click();
    await admin.page.getByRole('menuitem', { name }).click();
  };
  const confirm = (name) => admin.page.getByRole('dialog').getByRole('button', { name }).click();
  await act('Reset one-time passwords');
  await confirm('Reset one-time passwords');
  await admin.page.getByRole('dialog').waitFor({ state: 'detached' });
  await act('Change');
  const dialog = admin.page.getByRole('dialog');
  await dialog.getByLabel('Networks').fill('nowhere');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await admin.page.locator('textarea[aria-invalid=true]').waitFor();
  await screenshot(admin.page, 'people-change-refused');
  assert.deepEqual(await checkAccessibility(admin.page, 'the dialog of a user'), []);
  await dialog.getByLabel('Networks').fill('10.0.0.0/8');
  await dialog.getByLabel('Name', { exact: true }).fill('A newcomer');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await dialog.waitFor({ state: 'detached' });
  await admin.page.getByText('A newcomer', { exact: true }).first().waitFor();
  await act('Purge');
  await admin.page.getByText('1 keypair', { exact: true }).waitFor();
  await admin.page.getByRole('dialog').getByRole('textbox').fill(person.email);
  await screenshot(admin.page, 'people-purge');
  await confirm('Purge');
  await admin.page.getByText(person.email, { exact: true }).waitFor({ state: 'detached' });
  admin.expectNoFaults();
});
