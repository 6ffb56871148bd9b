// One namespace for each feature. The types of all keys come from here; `ko.ts` must have exactly the same.

import home from '../app/home/locale/en.json';
import app from '../app/locale/en.json';
import components from '../components/locale/en.json';
import login from '../features/login/locale/en.json';
import people from '../features/people/locale/en.json';
import sessions from '../features/sessions/locale/en.json';

export default {
  app,
  components,
  home,
  login,
  people,
  sessions,
};
