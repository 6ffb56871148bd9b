import home from '../app/home/locale/ko.json';
import app from '../app/locale/ko.json';
import components from '../components/locale/ko.json';
import login from '../features/login/locale/ko.json';
import people from '../features/people/locale/ko.json';
import sessions from '../features/sessions/locale/ko.json';
import type en from './en';

const ko = {
  app,
  components,
  home,
  login,
  people,
  sessions,
};

// Both ways, so that a key missing in either language does not compile.
const checked: typeof en = ko;
export const english: (messages: typeof en) => typeof ko = (messages) => messages;

export default checked;
